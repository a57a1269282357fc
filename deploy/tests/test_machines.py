"""Tests of deploy/install.sh on machines and in folders that it cannot use."""

import os
import pathlib
import shutil
import subprocess
import unittest

import case
import release


class Machines(case.Case):
    def test_a_machine_without_a_program_is_named(self) -> None:
        for system, machine in (("Linux", "riscv64"), ("Linux", "i686"), ("FreeBSD", "amd64")):
            self.replace_tool("uname", f'[ "$1" = -s ] && echo {system} || echo {machine}')
            self.assertIn(f"no program for {system} on {machine}: build it from source", self.fails())

    def test_each_platform_has_its_archive(self) -> None:
        for system, machine, target in (
            ("Linux", "aarch64", "aarch64-unknown-linux-gnu"),
            ("Darwin", "arm64", "aarch64-apple-darwin"),
            ("Darwin", "x86_64", "x86_64-apple-darwin"),
        ):
            release.write(self.release, "0.1.0", target)
            self.replace_tool("uname", f'[ "$1" = -s ] && echo {system} || echo {machine}')
            self.replace_tool("sysctl", "echo 0")
            self.assertIn(f"nsbridge-0.1.0-{target}.tar.gz", self.install())
            self.install("--uninstall")
        self.replace_tool("sysctl", "echo 1")
        self.assertIn("aarch64-apple-darwin", self.install(), "a translated process is on an ARM64 processor")

    def test_an_old_glibc_and_other_libraries_are_named(self) -> None:
        self.replace_tool("getconf", "echo glibc 2.27")
        self.assertIn("this system has glibc 2.27, and the program needs 2.28 or later", self.fails())
        self.replace_tool("getconf", "exit 1")
        self.replace_tool("ldd", "echo 'ldd (GNU libc) 2.17'")
        self.assertIn("this system has glibc 2.17", self.fails())
        self.replace_tool("ldd", "echo 'musl libc (x86_64)' >&2; exit 1")
        self.assertIn("this system has musl", self.fails())
        self.replace_tool("ldd", "exit 127")
        self.assertIn("this system has no glibc", self.fails())
        self.assert_no_trace()
        for enough in ("(Debian GLIBC 2.28-10+deb10u4) 2.28", "(GNU libc) 2.100", "(GNU libc) 3.0"):
            self.replace_tool("ldd", f"echo 'ldd {enough}'")
            self.install()

    def test_a_32_bit_system_is_refused(self) -> None:
        self.replace_tool("getconf", "echo 32")
        self.assertIn("this is a 32-bit system", self.fails())

    def test_a_machine_without_a_program_for_downloads_or_sums_is_told(self) -> None:
        self.only_these_tools()
        self.assertIn("neither curl nor wget is installed", self.fails())
        (self.folder / "tools/curl").symlink_to(shutil.which("curl"))
        self.assertIn("none of sha256sum, shasum and openssl is installed", self.fails())
        self.assert_no_trace()

    def test_a_processor_without_the_fast_kernels_is_a_note(self) -> None:
        self.replace_tool("grep", f'[ "$2" != avx2 ] && exec {shutil.which("grep")} "$@"')
        self.assertIn("note: this processor has no avx2: models give the same tokens", self.install())

    def test_a_program_that_does_not_start_replaces_nothing(self) -> None:
        self.install()
        broken = {**release.files("0.2.0"), "bin/nsbridge": b"#!/bin/sh\necho no such library >&2\nexit 127\n"}
        release.write(self.release, "0.2.0", content=broken)
        self.assertIn("does not start on this machine: no such library", self.fails("--version", "0.2.0"))
        self.assertEqual(self.installed(), {*release.files("0.1.0"), "share/nsbridge/installed-files"})


class Places(case.Case):
    def test_a_prefix_that_cannot_be_written_is_named(self) -> None:
        closed = self.folder / "closed"
        closed.mkdir(mode=0o555)
        self.prefix = closed
        self.assertIn(f"{closed} cannot be written: name a folder", self.fails(**case.OTHER_USER))
        self.prefix = closed / "new"
        self.assertIn(f"{closed}/new cannot be made: name a folder", self.fails(**case.OTHER_USER))

    def test_a_full_disk_installs_nothing(self) -> None:
        disk = self.mount("1m")
        self.prefix = disk / "prefix"
        self.assertIn("has 1 MB of free space, and the installation needs 150 MB: make room", self.fails())
        self.assert_no_trace()

    def test_a_disk_that_becomes_full_installs_nothing(self) -> None:
        disk = self.mount("151m")
        self.prefix = disk / "prefix"

        def fill() -> None:
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            with (disk / "others").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, free - 50_000)

        # The first body is that of SHA256SUMS.
        bodies = iter([lambda: None, fill])
        self.server.before_body = lambda: next(bodies, lambda: None)()
        self.assertIn("has 0 MB of free space", self.fails())
        self.assert_no_trace()

    def mount(self, size: str) -> pathlib.Path:
        """Mounts a small file system, which needs root."""
        disk = self.folder / "disk"
        disk.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            self.skipTest(f"a full disk was NOT tested: {made.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", str(disk)], check=True)
        return disk

    def test_a_command_that_comes_first_in_the_path_is_named(self) -> None:
        self.replace_tool("nsbridge", "exit 0")
        self.environment["PATH"] += f":{self.prefix}/bin"
        self.assertIn(f"note: {self.folder}/before/nsbridge comes first in PATH", self.install())

    def test_wrong_arguments_are_told(self) -> None:
        self.assertIn("there is no option --now", self.fails("--now"))
        self.assertIn("--version needs a value", self.fails("--version"))
        self.assertIn("is no version", self.fails("--version", "../../x"))


if __name__ == "__main__":
    unittest.main()
