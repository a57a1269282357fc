"""Test of the wheel: it is built, installed into a fresh environment, and runs the README's examples."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import nsbridge
from place import Place

PACKAGE = Path(__file__).resolve().parents[1]


def blocks(document: str) -> list[str]:
    """Returns the Python programs of a document."""
    return [part.split("```")[0] for part in document.split("```python\n")[1:]]


def run(*command: str | Path, **options) -> str:
    """Runs a command without this checkout in its path, and returns its stdout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=environment, **options
    )
    if done.returncode:
        raise AssertionError(f"{command[:3]} failed: {done.stdout}{done.stderr}")
    return done.stdout


class Wheel(unittest.TestCase):
    def test_the_wheel_runs_the_examples_of_its_readme_in_a_fresh_environment(self):
        folder = tempfile.TemporaryDirectory(prefix="nsbridge-wheel-")
        self.addCleanup(folder.cleanup)
        place = Place()
        self.addCleanup(place.close)
        place.worker()
        home = Path(folder.name)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", home, PACKAGE)
        (wheel,) = home.glob("*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        self.assertIn("nsbridge/py.typed", names)
        self.assertFalse([name for name in names if "test" in name])
        run(sys.executable, "-m", "venv", home / "env")
        python = home / "env" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        arguments = (place.url, place.keys, place.model)
        blocking, coroutines, steps = blocks((PACKAGE / "README.md").read_text())
        out = run(python, "-c", blocking, *arguments, cwd=home)
        self.assertRegex(out, r"\n40 tokens, length, seed \d+\n")
        self.assertGreater(len(run(python, "-c", coroutines, *arguments, cwd=home)), 40)
        run(python, "-c", steps, cwd=home)
        example = PACKAGE.parent / "examples" / "python-client" / "ask.py"
        self.assertIn(" tokens", run(python, example, *arguments, "Once a bear", cwd=home))
        version = run(python, "-m", "pip", "show", "nsbridge", cwd=home).splitlines()[1]
        self.assertEqual(version, f"Version: {nsbridge.__version__}")


if __name__ == "__main__":
    unittest.main()
