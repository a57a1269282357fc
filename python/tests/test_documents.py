"""The programs in the documents, as a type checker must see them, and small facts they state."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from nsbridge.text import TextPiece, join
from runner import Runner

PYTHON = Path(__file__).resolve().parents[1]


def programs(document: Path) -> list[str]:
    """Returns the Python programs of a document."""
    return re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)


def typed_model() -> str:
    """Returns the model of docs/python.md that has types."""
    found = programs(PYTHON.parent / "docs" / "python.md")
    (model,) = (program for program in found if "Models, Options" in program)
    return model


class Documents(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_the_programs_have_right_types(self):
        found = [*programs(PYTHON / "README.md"), typed_model()]
        self.assertGreater(len(found), 4)
        files = [self.folder / f"program_{index}.py" for index in range(len(found))]
        for file, program in zip(files, found):
            file.write_text(program)
        command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", *files]
        checked = subprocess.run(command, cwd=PYTHON, capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_the_models_answer_in_the_runner_of_a_worker(self):
        *_, parrot = programs(PYTHON / "README.md")
        models = [(typed_model(), "bear", "bear"), (parrot, {"prompt": "bear"}, "hello bear")]
        for index, (program, input, text) in enumerate(models):
            path = self.folder / f"model_{index}.py"
            path.write_text(program)
            with Runner(path) as runner:
                told = runner.answer(input)
            self.assertEqual(told["pieces"], [{"token": 0, "text": text}])

    def test_the_text_of_a_reply_is_that_of_its_first_choice_whatever_its_pieces_are(self):
        self.assertEqual(join(["a ", "b"]), "a b")
        self.assertEqual(join([TextPiece("a"), TextPiece("x", index=1), TextPiece("b")]), "ab")


if __name__ == "__main__":
    unittest.main()
