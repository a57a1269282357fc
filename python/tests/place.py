"""Real workers on a real RabbitMQ.

`NSBRIDGE_TEST_AMQP_URL` names a broker, and `NSBRIDGE_TEST_BINARY` the `nsbridge` command.
`cargo xtask test` sets both.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "models" / "tale-7m"
WAIT_S = 60


def named(variable: str) -> str:
    """Returns a variable that `cargo xtask test` sets."""
    value = os.environ.get(variable)
    if not value:
        raise RuntimeError(f"this test needs {variable}: `cargo xtask test` sets it")
    return value


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(what: str, happens) -> None:
    """Waits until `happens()` is true."""
    start = time.monotonic()
    while not happens():
        if time.monotonic() - start > WAIT_S:
            raise AssertionError(f"{what} did not happen within {WAIT_S} s")
        time.sleep(0.02)


class Worker:
    """Process of a worker that takes requests."""

    def __init__(self, place: Place, handler: str, environment: dict[str, str]):
        self.name, self.port = f"worker-{len(place.workers)}", free_port()
        folder = place.folder
        config, self.log = folder / f"{self.name}.toml", folder / f"{self.name}.log"
        config.write_text(
            f'[worker]\nmodel = "{place.model}"\nname = "{self.name}"\ngrace_s = 1\n'
            f'[broker]\nurl = "{place.url}"\n'
            f'[keys]\nkeyring = "keys.json"\n'
            f'[models]\ntarget = "{MODEL}"\n'
            f'[health]\nlisten = "127.0.0.1:{self.port}"\n'
            f"[handler]\n{handler}\n"
        )
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [named("NSBRIDGE_TEST_BINARY"), "worker", "--config", str(config)],
                stderr=log,
                stdout=log,
                env={**os.environ, **environment},
            )
        wait_until("the worker's start", self._is_ready)

    def _is_ready(self) -> bool:
        log = self.log.read_text()
        if self.process.poll() is not None:
            raise AssertionError(f"the worker ended: {log}")
        return "taking requests" in log

    def ended(self, outcome: str) -> int:
        """Returns the number of requests that ended with this outcome."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        label = f'outcome="{outcome}"'
        found = (line for line in lines if line.startswith("nsbridge_requests_ended"))
        return sum(int(float(line.split()[-1])) for line in found if label in line)

    def kill(self) -> None:
        """Ends the process at once, as a lost machine does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Ends the process in order."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


class Place:
    """Folder with a keyring, and a model name of its own."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="nsbridge-python-")
        self.folder = Path(self._folder.name)
        self.url, self.model = named("NSBRIDGE_TEST_AMQP_URL"), f"python-{secrets.token_hex(8)}"
        self.keys = self.folder / "keys.json"
        self.workers: list[Worker] = []
        self.nsbridge("keys", "generate", "--out", str(self.keys))

    def nsbridge(self, *arguments: str) -> str:
        """Runs the command and returns its stdout."""
        command = [named("NSBRIDGE_TEST_BINARY"), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def worker(self, handler: str = "max_tokens = 900", **environment: str) -> Worker:
        """Starts a worker and waits until it takes requests."""
        worker = Worker(self, handler, environment)
        self.workers.append(worker)
        return worker

    def python(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a Python program that has the broker's URL, the keyring and the model as arguments."""
        # A program that a shell runs in the background inherits that SIGINT is ignored.
        heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        program = f"{heard}\n{program}"
        command = [sys.executable, "-c", program, self.url, str(self.keys), self.model, *arguments]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        )

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()
        self._folder.cleanup()
