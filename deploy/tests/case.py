"""Runs of deploy/install.sh: a small release, a server of it, and a folder to install into."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import release

SCRIPT = pathlib.Path(__file__).parent.parent / "install.sh"
# What the script needs beside a program for downloads and one for sums.
TOOLS = "awk cat cp df dirname getconf grep gzip head id mkdir mktemp mv rm rmdir sed sh sleep sort tail tar uname wc".split()
# What root becomes to be refused by file modes.
OTHER_USER = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}


class Case(unittest.TestCase):
    """A release in a folder, a server of it, and a prefix."""

    def setUp(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nsbridge-install-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.folder.chmod(0o755)
        self.release = self.folder / "release"
        self.release.mkdir()
        self.archive = release.write(self.release, "0.1.0")
        self.server = release.Server(self.release)
        self.addCleanup(self.server.close)
        self.prefix = self.folder / "prefix"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "NSBRIDGE_DOWNLOAD": self.server.address,
        }
        # The pauses between downloads, shorter.
        self.replace_tool("sleep", "exec /bin/sleep 0.05")

    def command(self, *arguments: str, shell: list[str] | None = None) -> list[str]:
        return [*(shell or ["sh"]), str(SCRIPT), "--prefix", str(self.prefix), *arguments]

    def run_script(self, *arguments: str, shell: list[str] | None = None, **options) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments, shell=shell),
            env=self.environment, capture_output=True, text=True, timeout=60, check=False, **options,
        )

    def install(self, *arguments: str, **options) -> str:
        done = self.run_script(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def fails(self, *arguments: str, **options) -> str:
        """Runs the script, and returns the one sentence that it fails with."""
        done = self.run_script(*arguments, **options)
        self.assertEqual(done.returncode, 1, done.stderr)
        lines = [line for line in done.stderr.splitlines() if not line.startswith(("downloading ", "note: "))]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertRegex(lines[0], "^error: ")
        return lines[0]

    def assert_no_trace(self) -> None:
        """Checks that a failed installation into a new prefix left nothing."""
        self.assertFalse(self.prefix.exists(), list(self.prefix.rglob("*")) if self.prefix.exists() else None)

    def only_these_tools(self, *names: str) -> None:
        """Sets a PATH with the named programs and those that the script cannot do without."""
        tools = self.folder / "tools"
        tools.mkdir()
        for name in (*TOOLS, *names):
            (tools / name).symlink_to(shutil.which(name) or self.fail(f"{name} is not installed"))
        self.environment["PATH"] = str(tools)

    def replace_tool(self, name: str, script: str) -> None:
        """Puts a program before all others of its name."""
        tools = self.folder / "before"
        tools.mkdir(exist_ok=True)
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
        if str(tools) not in self.environment["PATH"]:
            self.environment["PATH"] = f"{tools}:{self.environment['PATH']}"

    def installed(self) -> set[str]:
        files = (path for path in self.prefix.rglob("*") if not path.is_dir())
        return {str(path.relative_to(self.prefix)) for path in files}
