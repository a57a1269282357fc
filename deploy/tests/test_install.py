"""Tests of deploy/install.sh: it installs, replaces and removes the files of a release."""

import os
import shutil
import subprocess
import unittest

import case
import release

SHELLS = [["dash"], ["busybox", "sh"], ["bash", "--posix"]]


class Installs(case.Case):
    def test_every_shell_installs_the_files_and_removes_all_of_them(self) -> None:
        for shell in SHELLS:
            with self.subTest(shell=shell):
                self.assertTrue(shutil.which(shell[0]), f"{shell[0]} is not installed")
                said = self.install(shell=shell)
                self.assertIn(f"installed nsbridge 0.1.0 in {self.prefix}\n", said)
                self.assertIn(f'next: export PATH="{self.prefix}/bin:$PATH" && nsbridge demo', said)
                self.assertEqual(self.installed(), {*release.files("0.1.0"), "share/nsbridge/installed-files"})
                says = subprocess.run([self.prefix / "bin/nsbridge"], capture_output=True, text=True, check=True)
                self.assertEqual(says.stdout, "nsbridge 0.1.0\n")
                for path in self.prefix.rglob("*"):
                    self.assertEqual(path.stat().st_uid, os.getuid(), path)
                self.install("--uninstall", shell=shell)
                self.assert_no_trace()

    def test_a_script_from_a_pipe_installs_into_the_home_folder(self) -> None:
        home = self.folder / "home"
        home.mkdir(mode=0o777)
        home.chmod(0o777)
        with case.SCRIPT.open() as script:
            done = subprocess.run(
                ["sh"], stdin=script, env=self.environment, capture_output=True, text=True, cwd="/", check=False,
                **case.OTHER_USER,
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((home / ".local/bin/nsbridge").is_file())

    def test_other_users_can_run_what_was_installed_with_any_umask(self) -> None:
        for umask in (0o077, 0o000):
            self.install(umask=umask)
            for path in [self.prefix, *self.prefix.rglob("*")]:
                executable = path.is_dir() or path.name == "nsbridge"
                self.assertEqual(path.stat().st_mode & 0o777, 0o755 if executable else 0o644, path)
            self.install("--uninstall")

    def test_an_upgrade_replaces_the_files_and_removes_those_that_are_gone(self) -> None:
        self.install("--version", "0.1.0")
        release.write(self.release, "0.2.0")
        self.install("--version", "0.2.0")
        self.assertEqual(self.installed(), {*release.files("0.2.0"), "share/nsbridge/installed-files"})
        self.assertEqual((self.prefix / "bin/nsbridge").read_bytes(), release.program("0.2.0"))
        self.install("--uninstall")
        self.assert_no_trace()

    def test_an_uninstallation_leaves_the_files_and_folders_of_others(self) -> None:
        theirs = self.prefix / "share/doc/nsbridge"
        (self.prefix / "bin").mkdir(parents=True)
        self.install()
        (theirs / "notes").write_text("mine")
        self.install("--uninstall")
        self.assertEqual(self.installed(), {"share/doc/nsbridge/notes"})
        self.assertTrue((self.prefix / "bin").is_dir(), "an empty folder that was there before is gone")
        self.assertIn("this script has installed nothing there", self.fails("--uninstall"))

    def test_a_manifest_that_leads_out_of_the_prefix_removes_nothing(self) -> None:
        self.install()
        outside = self.folder / "outside"
        outside.write_text("")
        for line in ["../outside", "share/../../outside", str(outside)]:
            (self.prefix / "share/nsbridge/installed-files").write_text(f"bin/nsbridge\n{line}\n")
            self.assertIn("names a file outside of", self.fails("--uninstall"))
        self.assertTrue(outside.exists() and (self.prefix / "bin/nsbridge").exists())

    def test_a_file_of_another_owner_is_not_replaced(self) -> None:
        (self.prefix / "bin").mkdir(parents=True)
        (self.prefix / "bin/nsbridge").write_text("of a package")
        self.assertIn(f"{self.prefix}/bin/nsbridge exists and is not from this script", self.fails())
        self.assertEqual(self.installed(), {"bin/nsbridge"})

    def test_either_wget_and_openssl_are_enough(self) -> None:
        self.only_these_tools("openssl")
        for wget in ("wget", "busybox"):
            with self.subTest(wget=wget):
                tool = self.folder / "tools/wget"
                tool.unlink(missing_ok=True)
                tool.symlink_to(shutil.which(wget) or self.fail(f"{wget} is not installed"))
                self.server.faults, self.server.ranges = ["cut"], []
                self.install()
                self.assertRegex(self.server.ranges[1] or "", r"^bytes=\d+-$")
                self.install("--uninstall")

    def test_the_address_may_hold_the_version_and_be_a_folder(self) -> None:
        (self.release / "v0.1.0").mkdir()
        for name in (self.archive, "SHA256SUMS"):
            (self.release / name).rename(self.release / "v0.1.0" / name)
        self.environment["NSBRIDGE_DOWNLOAD"] = f"file://{self.release}/v{{version}}"
        self.assertIn("name the version to install with --version", self.fails())
        self.install("--version", "v0.1.0")

    def test_a_release_fills_in_its_address_and_version(self) -> None:
        text = case.SCRIPT.read_text().replace("@DOWNLOAD@", self.server.address).replace("@VERSION@", "0.1.0")
        filled = self.folder / "install.sh"
        filled.write_text(text)
        del self.environment["NSBRIDGE_DOWNLOAD"]
        command = ["sh", str(filled), "--prefix", str(self.prefix)]
        subprocess.run(command, env=self.environment, capture_output=True, check=True)

    def test_a_script_that_was_cut_off_installs_nothing(self) -> None:
        lines = case.SCRIPT.read_text().splitlines(keepends=True)
        for count in (20, len(lines) // 2, len(lines) - 1):
            done = subprocess.run(
                ["sh"], input="".join(lines[:count]), env=self.environment, capture_output=True, text=True, check=False
            )
            self.assertNotIn("install", done.stdout)
            self.assertFalse((self.folder / "home").exists())
        self.assertEqual(self.server.ranges, [])


if __name__ == "__main__":
    unittest.main()
