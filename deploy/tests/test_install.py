"""Tests of deploy/install.sh: it installs, replaces and removes a small release, and says what is wrong."""

import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile
import unittest

import release

SCRIPT = pathlib.Path(__file__).parent.parent / "install.sh"
# What the script needs beside a program for downloads and one for sums.
TOOLS = "awk cat cp df dirname getconf grep gzip head id mkdir mktemp mv rm rmdir sed sh sleep sort tail tar uname wc".split()
SHELLS = [["dash"], ["busybox", "sh"], ["bash", "--posix"]]


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


class Installs(Case):
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
        user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
        with SCRIPT.open() as script:
            done = subprocess.run(["sh"], stdin=script, env=self.environment, capture_output=True, text=True, cwd="/", **user)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((home / ".local/bin/nsbridge").is_file())

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
        text = SCRIPT.read_text().replace("@DOWNLOAD@", self.server.address).replace("@VERSION@", "0.1.0")
        filled = self.folder / "install.sh"
        filled.write_text(text)
        del self.environment["NSBRIDGE_DOWNLOAD"]
        command = ["sh", str(filled), "--prefix", str(self.prefix)]
        subprocess.run(command, env=self.environment, capture_output=True, check=True)

    def test_a_script_that_was_cut_off_installs_nothing(self) -> None:
        lines = SCRIPT.read_text().splitlines(keepends=True)
        for count in (20, len(lines) // 2, len(lines) - 1):
            done = subprocess.run(["sh"], input="".join(lines[:count]), env=self.environment, capture_output=True, text=True)
            self.assertNotIn("install", done.stdout)
            self.assertFalse((self.folder / "home").exists())
        self.assertEqual(self.server.ranges, [])


class Downloads(Case):
    def test_an_interrupted_download_is_continued(self) -> None:
        self.server.faults = ["cut", "cut"]
        self.install()
        first, *later = self.server.ranges
        self.assertIsNone(first)
        self.assertEqual(len(later), 2)
        for asked in later:
            self.assertRegex(asked or "", r"^bytes=\d{5,}-$")

    def test_a_download_that_cannot_be_continued_begins_anew(self) -> None:
        self.server.faults, self.server.continues = ["cut"], False
        self.install()
        self.assertGreaterEqual(len(self.server.ranges), 2)

    def test_a_busy_server_is_asked_again(self) -> None:
        self.server.faults = ["busy"]
        self.install()

    def test_a_download_that_never_ends_is_given_up(self) -> None:
        self.server.faults = ["cut"] * 9
        self.assertRegex(self.fails(), r"was interrupted 5 times, last after \d+ bytes: run this script again")
        self.assertEqual(len(self.server.ranges), 5)
        self.assert_no_trace()

    def test_a_wrong_sum_installs_nothing_and_names_both(self) -> None:
        path = self.release / self.archive
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        self.assertRegex(self.fails(), "has the SHA-256 sum [0-9a-f]{64}, and SHA256SUMS has [0-9a-f]{64}: nothing was")
        self.assert_no_trace()

    def test_a_missing_file_is_named(self) -> None:
        for wget in (None, "wget", "busybox"):
            with self.subTest(wget=wget):
                if wget and not (self.folder / "tools").exists():
                    self.only_these_tools("sha256sum")
                if wget:
                    (self.folder / "tools/wget").unlink(missing_ok=True)
                    (self.folder / "tools/wget").symlink_to(shutil.which(wget))
                sums = (self.release / "SHA256SUMS").rename(self.folder / "sums")
                self.assertIn(f"{self.server.address}/SHA256SUMS does not exist", self.fails())
                sums.rename(self.release / "SHA256SUMS")
                (self.release / self.archive).rename(self.folder / "archive")
                self.assertIn(f"{self.archive} does not exist", self.fails())
                (self.folder / "archive").rename(self.release / self.archive)
                self.assertIn("has no program for x86_64-unknown-linux-gnu in version 9", self.fails("--version", "9"))
        self.assert_no_trace()

    def test_a_refused_file_is_not_asked_for_again(self) -> None:
        self.server.faults = ["deny"]
        self.assertIn("was refused with status 403", self.fails())

    def test_an_address_without_tls_is_refused(self) -> None:
        for address in ("http://example.org/nsbridge", "http://127.0.0.1.example.org", "ftp://example.org"):
            self.environment["NSBRIDGE_DOWNLOAD"] = address
            self.assertIn("must begin with https://", self.fails())
        del self.environment["NSBRIDGE_DOWNLOAD"]
        self.assertIn("set NSBRIDGE_DOWNLOAD", self.fails())

    def test_a_stopped_installation_leaves_nothing(self) -> None:
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            self.server.faults = ["busy"] * 9
            self.replace_tool("sleep", "exec /bin/sleep 1")
            process = subprocess.Popen(
                self.command(), env=self.environment, stderr=subprocess.PIPE, start_new_session=True,
                # A shell cannot trap what it was started to ignore, as by nohup or in the background.
                preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
            )
            self.assertIn(b"downloading", process.stderr.readline())
            os.killpg(process.pid, number)
            self.assertEqual(process.wait(timeout=20), code)
            process.stderr.close()
            self.assert_no_trace()


class Machines(Case):
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


class Places(Case):
    def test_a_prefix_that_cannot_be_written_is_named(self) -> None:
        closed = self.folder / "closed"
        closed.mkdir(mode=0o555)
        user = {}
        if os.getuid() == 0:
            pwd.getpwnam("nobody")
            user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        self.prefix = closed
        self.assertIn(f"{closed} cannot be written: name a folder", self.fails(**user))
        self.prefix = closed / "new"
        self.assertIn(f"{closed}/new cannot be made: name a folder", self.fails(**user))

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
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True, text=True)
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
