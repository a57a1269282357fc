"""Tests of deploy/vllm/follower.py, beside a package that takes vLLM's place and a listener that takes that of rank 0."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).parent.parent / "vllm" / "follower.py"
RANKS = """
import json, os, pathlib, sys, time
started = pathlib.Path(os.environ["STARTED"])
started.with_suffix(".new").write_text(json.dumps([os.getpid(), sys.argv[1:]]))
started.with_suffix(".new").rename(started)
time.sleep(float(os.environ.get("RUNS_S", 600)))
"""
CONFIG = """
[models]
target = "model"
draft = "draft"
[handler]
engine = "vllm"
[handler.options]
nnodes = 2
master_addr = "127.0.0.1"
master_port = PORT
tensor_parallel_size = 2
enforce_eager = true
enable_prefix_caching = false
speculative_config = { model = "draft", num_speculative_tokens = 4 }
logits_processors = ["a", "b"]
"""


def ends(pid: int) -> bool:
    """Returns true once the process is no more."""
    for _ in range(100):
        try:
            if f"{pid} (python" not in pathlib.Path(f"/proc/{pid}/stat").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


class Follows(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nsbridge-follower-"))
        self.addCleanup(shutil.rmtree, self.folder)
        main = self.folder / "vllm" / "entrypoints" / "cli" / "main.py"
        main.parent.mkdir(parents=True)
        main.write_text(RANKS)
        for model in ("model", "draft"):
            (self.folder / model).mkdir()
        self.rank_0 = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.rank_0.close)
        self.config = self.folder / "worker.toml"
        self.write(CONFIG)

    def write(self, config: str) -> None:
        self.config.write_text(config.replace("PORT", str(self.rank_0.getsockname()[1])))

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "STARTED": str(self.folder / "started"), **variables}
        follower = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(self.config), *arguments], env=environment, stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(follower.stderr.close)
        self.addCleanup(follower.wait)
        self.addCleanup(follower.kill)
        return follower

    def connected(self) -> tuple[socket.socket, int, list[str]]:
        """Waits for the follower. Returns its connection, the process of its ranks, and their arguments."""
        self.rank_0.settimeout(20)
        connection, _ = self.rank_0.accept()
        self.addCleanup(connection.close)
        while not (self.folder / "started").exists():
            time.sleep(0.05)
        pid, arguments = json.loads((self.folder / "started").read_text())
        self.addCleanup(lambda: ends(pid) or os.kill(pid, signal.SIGKILL))
        return connection, pid, arguments

    def test_the_ranks_have_the_options_of_the_worker_and_end_with_rank_0(self) -> None:
        follower = self.start("--rank", "1")
        connection, pid, arguments = self.connected()
        self.assertEqual(arguments[:3], ["serve", str(self.folder / "model"), "--headless"])
        draft = f'--speculative-config={{"model": "{self.folder}/draft", "num_speculative_tokens": 4}}'
        self.assertEqual(arguments[5:], [
            f"--master-port={self.rank_0.getsockname()[1]}", "--tensor-parallel-size=2", "--enforce-eager",
            "--no-enable-prefix-caching", draft, "--logits-processors", "a", "b",
            "--node-rank=1",
        ])
        self.assertIsNone(follower.poll())
        connection.close()
        self.assertEqual(follower.wait(20), 1)
        self.assertIn("rank 0 has ended", follower.stderr.read())
        self.assertTrue(ends(pid))

    def test_after_a_signal_the_ranks_run_until_rank_0_ends(self) -> None:
        follower = self.start("--rank", "1")
        connection, pid, _ = self.connected()
        follower.send_signal(signal.SIGTERM)
        self.assertIn("waiting for the end of rank 0", follower.stderr.readline())
        time.sleep(2)
        self.assertIsNone(follower.poll())
        connection.close()
        self.assertEqual(follower.wait(20), 0)
        self.assertTrue(ends(pid))

    def test_a_second_signal_ends_the_ranks_at_once(self) -> None:
        follower = self.start("--rank", "1")
        _, pid, _ = self.connected()
        follower.send_signal(signal.SIGTERM)
        follower.stderr.readline()
        follower.send_signal(signal.SIGTERM)
        self.assertEqual(follower.wait(20), 1)
        self.assertTrue(ends(pid))

    def test_the_end_of_the_ranks_is_the_end_of_the_follower(self) -> None:
        follower = self.start("--rank", "1", RUNS_S="0.5")
        self.assertEqual(follower.wait(20), 1)
        self.assertIn("the ranks here have ended with code 0", follower.stderr.read())

    def test_what_is_missing_is_told_in_a_sentence(self) -> None:
        for config, rank, sentence in [
            (CONFIG, "2", "nnodes above the rank 2"),
            (CONFIG, "0", "nnodes above the rank 0"),
            (CONFIG.replace("master_addr", "#"), "1", "needs master_addr"),
            (CONFIG.replace('target = "model"', 'target = "s3://models/m"'), "1", "s3://models/m is no folder here"),
            (CONFIG.replace('draft = "draft"', 'draft = "absent"'), "1", "absent is no folder here"),
            ("[models", "1", "error: "),
        ]:
            self.write(config)
            follower = self.start("--rank", rank)
            self.assertEqual(follower.wait(20), 1)
            said = follower.stderr.read()
            self.assertIn(sentence, said)
            self.assertEqual(len(said.splitlines()), 1, said)


if __name__ == "__main__":
    unittest.main()
