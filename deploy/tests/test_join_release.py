"""Tests of deploy/join-release.sh, on releases of two files a platform."""

import hashlib
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parent.parent / "join-release.sh"
TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin", "x86_64-apple-darwin"]


class Joins(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nsbridge-join-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.out = self.folder / "out"
        for target in TARGETS:
            self.write(target, {f"nsbridge-1.2.3-{target}.tar.gz": target, "install.sh": "the same"})

    def write(self, target: str, files: dict[str, str]) -> None:
        """Writes the files of a platform and their sums."""
        folder = self.folder / "dist" / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
        sums = (f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in files.items())
        (folder / "SHA256SUMS").write_text("".join(sums))

    def join(self, version: str = "1.2.3") -> subprocess.CompletedProcess[str]:
        command = [SCRIPT, version, self.folder / "dist", self.out]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def fails(self, version: str = "1.2.3") -> str:
        done = self.join(version)
        self.assertEqual(done.returncode, 1, done.stderr)
        return done.stderr.splitlines()[-1]

    def test_all_files_and_their_sums_are_in_one_folder(self) -> None:
        self.assertEqual(self.join().returncode, 0)
        archives = {f"nsbridge-1.2.3-{target}.tar.gz" for target in TARGETS}
        self.assertEqual({path.name for path in self.out.iterdir()}, {*archives, "install.sh", "SHA256SUMS"})
        self.assertEqual(len((self.out / "SHA256SUMS").read_text().splitlines()), 5)
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=self.out, check=True)

    def test_platforms_that_disagree_are_refused(self) -> None:
        self.write(TARGETS[1], {"install.sh": "another"})
        self.assertIn("different files install.sh", self.fails())

    def test_a_changed_file_is_refused(self) -> None:
        (self.folder / "dist" / TARGETS[2] / "install.sh").write_text("changed")
        self.assertIn("does not hold what its SHA256SUMS lists", self.fails())

    def test_a_tag_of_another_version_and_a_missing_platform_are_refused(self) -> None:
        self.assertIn("has the tag the version of Cargo.toml?", self.fails("1.2.4"))
        shutil.rmtree(self.out)
        shutil.rmtree(self.folder / "dist" / TARGETS[3])
        self.assertIn(f"there is no nsbridge-1.2.3-{TARGETS[3]}", self.fails())


if __name__ == "__main__":
    unittest.main()
