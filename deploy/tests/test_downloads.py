"""Tests of the downloads of deploy/install.sh, from a server with the faults of real ones."""

import os
import shutil
import signal
import socket
import subprocess
import unittest

import case


class Downloads(case.Case):
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

    def test_an_address_without_a_server_is_named(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        self.environment["NSBRIDGE_DOWNLOAD"] = address
        self.assertIn(f"{address}/SHA256SUMS cannot be reached: check NSBRIDGE_DOWNLOAD", self.fails())
        self.assert_no_trace()

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
                preexec_fn=lambda number=number: signal.signal(number, signal.SIG_DFL),
            )
            self.assertIn(b"downloading", process.stderr.readline())
            os.killpg(process.pid, number)
            self.assertEqual(process.wait(timeout=20), code)
            process.stderr.close()
            self.assert_no_trace()


if __name__ == "__main__":
    unittest.main()
