"""Imports among the modules of the package: there are no circles."""

from __future__ import annotations

import ast
import unittest
from pathlib import Path

import nsbridge


def imports(path: Path) -> set[str]:
    """Returns the modules that a module imports, in functions and for types too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found.update(names)
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Returns the modules of a circle, or none."""
    done: set[str] = set()

    def walk(module: str, above: list[str]) -> list[str]:
        if module in above:
            return [*above[above.index(module) :], module]
        if module in done:
            return []
        for below in sorted(graph.get(module, ())):
            if found := walk(below, [*above, module]):
                return found
        done.add(module)
        return []

    return next((found for module in sorted(graph) if (found := walk(module, []))), [])


class Imports(unittest.TestCase):
    def test_no_module_imports_itself_through_others(self):
        folder = Path(nsbridge.__file__).parent
        graph = {path.stem: imports(path) for path in folder.glob("*.py")}
        self.assertGreater(len(graph), 20)
        self.assertEqual(circle(graph), [])

    def test_a_circle_is_found(self):
        self.assertEqual(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}), ["b", "c", "b"])
        self.assertEqual(circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}), [])


if __name__ == "__main__":
    unittest.main()
