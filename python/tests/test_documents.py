"""The programs in the documents, as a type checker must see them, and small facts they state."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from nsbridge.text import TextPiece, join

PYTHON = Path(__file__).parent.parent


class Documents(unittest.TestCase):
    def test_the_programs_of_the_readme_have_right_types(self):
        programs = re.findall(r"```python\n(.*?)```", (PYTHON / "README.md").read_text(), re.DOTALL)
        self.assertGreater(len(programs), 2)
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"program_{index}.py" for index in range(len(programs))]
            for file, program in zip(files, programs):
                file.write_text(program)
            command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", *files]
            checked = subprocess.run(command, cwd=PYTHON, capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_the_text_of_a_reply_is_that_of_its_first_choice_whatever_its_pieces_are(self):
        self.assertEqual(join(["a ", "b"]), "a b")
        self.assertEqual(join([TextPiece("a"), TextPiece("x", index=1), TextPiece("b")]), "ab")


if __name__ == "__main__":
    unittest.main()
