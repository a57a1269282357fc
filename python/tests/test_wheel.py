"""Tests of the wheels: they are built, installed into a fresh environment, and used there."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path

import nsbridge
from place import Place

PACKAGE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PACKAGE))
from hatch_build import NEEDED  # noqa: E402

TAG = "py3-none-manylinux_2_28_x86_64"


def blocks(document: str) -> list[str]:
    """Returns the Python programs of a document."""
    return [part.split("```")[0] for part in document.split("```python\n")[1:]]


def run(*command: str | Path, **options) -> str:
    """Runs a command without this checkout in its path, and returns its stdout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.update(options.pop("environment", {}))
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=environment, **options
    )
    if done.returncode:
        raise AssertionError(f"{command[:3]} failed: {done.stdout}{done.stderr}")
    return done.stdout


def build(out: Path, *what: str, source: Path = PACKAGE, **environment: str) -> Path:
    """Builds into a folder, and returns the wheel."""
    build = [sys.executable, "-m", "build", "--no-isolation", *what]
    run(*build, "--outdir", out, source, environment=environment)
    (wheel,) = out.glob("*.whl")
    return wheel


def environment(folder: Path) -> Path:
    """Makes a virtual environment, and returns its folder of commands."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin"


def install(commands: Path, *what: str | Path) -> None:
    pip = [commands / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "install", *what)


def metadata(wheel: Path, name: str) -> str:
    """Returns a file of the wheel's metadata."""
    return zipfile.ZipFile(wheel).read(f"nsbridge-{nsbridge.__version__}.dist-info/{name}").decode()


def wrong_lines(wheel: Path) -> list[str]:
    """Returns the files that RECORD lacks, or whose digest or size in it is another."""
    archive, recorded = zipfile.ZipFile(wheel), csv.reader(metadata(wheel, "RECORD").splitlines())
    lines = {name: (digest, size) for name, digest, size in recorded}
    for name in archive.namelist():
        content = archive.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        if lines.get(name) == (f"sha256={digest}", str(len(content))):
            del lines[name]
    return [name for name in lines if not name.endswith("/RECORD")]


def staged(root: Path) -> Path:
    """Makes a folder with the files of an installation; its command is a script of the shell."""
    for name in NEEDED:
        path = root / name
        if not path.suffix and name.startswith(("share/man", "share/nsbridge")):
            path = path / "a.file"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}\n")
    command = root / "bin" / "nsbridge"
    command.write_text("#!/bin/sh\nls $(dirname $(readlink -f $0))/../share/nsbridge/models\n")
    command.chmod(0o755)
    return root


def files(folder: Path) -> set[str]:
    """Returns the files of a folder, except for compiled ones."""
    found = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)) for path in found if path.is_file()}


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="nsbridge-wheel-")
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name)


class Examples(Case):
    def test_the_wheel_runs_the_examples_of_its_readme_in_a_fresh_environment(self):
        place = Place()
        self.addCleanup(place.close)
        place.worker()
        commands = environment(self.home / "env")
        install(commands, build(self.home))
        arguments = (place.url, place.keys, place.model)
        blocking, coroutines, steps, model = blocks((PACKAGE / "README.md").read_text())

        def python(*command: str | Path) -> str:
            return run(commands / "python", *command, cwd=self.home)

        out = python("-c", blocking, *arguments)
        self.assertRegex(out, r"\n40 tokens, length, seed \d+\n")
        self.assertGreater(len(python("-c", coroutines, *arguments)), 40)
        python("-c", steps)
        python("-c", model)
        example = PACKAGE.parent / "examples" / "python-client" / "ask.py"
        self.assertIn(" tokens", python(example, *arguments, "Once a bear"))
        version = python("-m", "pip", "show", "nsbridge").splitlines()[1]
        self.assertEqual(version, f"Version: {nsbridge.__version__}")


class Pure(Case):
    """The wheel without the command, which suits any machine."""

    def test_it_has_the_client_the_kit_and_the_licenses_and_nothing_else(self):
        wheel = build(self.home, "--wheel")
        self.assertTrue(wheel.name.endswith("-py3-none-any.whl"))
        self.assertIn("Root-Is-Purelib: true", metadata(wheel, "WHEEL"))
        self.assertEqual(wrong_lines(wheel), [])
        names = set(zipfile.ZipFile(wheel).namelist())
        for package in ("nsbridge", "nsbridge_handler"):
            sources = (path.name for path in (PACKAGE / "src" / package).iterdir())
            expected = {f"{package}/{name}" for name in sources if name != "__pycache__"}
            names -= expected
            self.assertIn(f"{package}/py.typed", expected)
        info = {name.split(".dist-info/")[-1] for name in names}
        licenses = {"licenses/LICENSE-APACHE", "licenses/LICENSE-MIT"}
        self.assertEqual(info, {"METADATA", "RECORD", "WHEEL", "entry_points.txt", *licenses})
        for name in licenses:
            text = (PACKAGE.parent / name.split("/")[1]).read_text()
            self.assertEqual(metadata(wheel, name), text)

    def test_the_source_distribution_has_no_links_and_builds_the_same_wheel(self):
        of_source = build(self.home / "all")
        (archive,) = (self.home / "all").glob("*.tar.gz")
        with tarfile.open(archive) as source:
            members = source.getmembers()
            source.extractall(self.home / "source")
        self.assertEqual([one.name for one in members if not one.isfile()], [])
        self.assertEqual(len({one.name for one in members}), len(members))
        (unpacked,) = (self.home / "source").iterdir()
        for again in (build(self.home / "a", "--wheel"), build(self.home / "b", source=unpacked)):
            self.assertEqual(of_source.read_bytes(), again.read_bytes())


class WithCommand(Case):
    """The wheel with the command `nsbridge`, its models and its pages, for one kind of machine."""

    def setUp(self):
        super().setUp()
        self.root = staged(self.home / "root")
        self.given = {"NSBRIDGE_DIST_ROOT": str(self.root), "NSBRIDGE_DIST_TAG": TAG}

    def build(self, folder: str, **more: str) -> Path:
        return build(self.home / folder, "--wheel", **{**self.given, **more})

    def test_it_has_the_command_and_its_files_and_its_tag(self):
        wheel = self.build("out")
        self.assertEqual(wheel.name, f"nsbridge-{nsbridge.__version__}-{TAG}.whl")
        about = metadata(wheel, "WHEEL")
        self.assertIn(f"Tag: {TAG}\n", about)
        self.assertIn("Root-Is-Purelib: false\n", about)
        self.assertEqual(wrong_lines(wheel), [])
        archive, data = zipfile.ZipFile(wheel), f"nsbridge-{nsbridge.__version__}.data"
        for name in files(self.root):
            inside = (
                f"{data}/data/{name}" if name.startswith("share/") else f"{data}/scripts/nsbridge"
            )
            self.assertEqual(archive.read(inside), (self.root / name).read_bytes())
            mode = archive.getinfo(inside).external_attr >> 16 & 0o777
            self.assertEqual(mode, 0o644 if name.startswith("share/") else 0o755, inside)
        self.assertEqual(archive.read("nsbridge_handler/testing.py")[:3], b'"""')

    def test_two_builds_have_the_same_bytes(self):
        wheels = [self.build("one", SOURCE_DATE_EPOCH="1700000000")]
        for path in self.root.rglob("*"):
            os.utime(path, (1, 1))
        wheels.append(self.build("two", SOURCE_DATE_EPOCH="1700000000"))
        self.assertEqual(*(wheel.read_bytes() for wheel in wheels))

    def test_the_command_is_installed_beside_its_models_and_uninstalled_without_a_rest(self):
        commands, prefix = environment(self.home / "env"), self.home / "env"
        before = files(prefix)
        # That of this machine, which may not be that of the release.
        tag = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
        install(commands, "--no-deps", self.build("out", NSBRIDGE_DIST_TAG=tag))
        self.assertEqual(run(commands / "nsbridge"), "tale-1m\ntale-7m\n")
        link = self.home / "nsbridge"
        link.symlink_to(commands / "nsbridge")
        self.assertEqual(run(link), "tale-1m\ntale-7m\n")
        installed = files(prefix) - before
        self.assertLessEqual(files(self.root), installed)
        self.assertIn("bin/nsbridge-ask", installed)
        run(commands / "python", "-m", "pip", "uninstall", "--yes", "nsbridge")
        self.assertEqual(files(prefix), before)

    def test_a_staged_installation_that_is_not_whole_gives_no_wheel(self):
        with self.assertRaisesRegex(AssertionError, "NSBRIDGE_DIST_TAG is 'any', no tag such as"):
            self.build("out", NSBRIDGE_DIST_TAG="any")
        (self.root / "share/doc/nsbridge/THIRD-PARTY.txt").unlink()
        with self.assertRaisesRegex(AssertionError, "lacks share/doc/nsbridge/THIRD-PARTY.txt"):
            self.build("out")

    def test_a_command_that_cannot_be_executed_gives_no_wheel(self):
        (self.root / "bin/nsbridge").chmod(0o644)
        with self.assertRaisesRegex(AssertionError, "bin/nsbridge is not executable"):
            self.build("out")


if __name__ == "__main__":
    unittest.main()
