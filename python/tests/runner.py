"""The runner of models in Python, started and spoken to as a worker does, without a worker.

The code is that which `crates/handlers/python/src/plan.rs` puts into the command.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

CRATE = Path(__file__).resolve().parents[2] / "crates" / "handlers" / "python"
LIMIT_S = 30


def files() -> list[Path]:
    """Returns the files of the code that reads the runner, and of the runner, in their order."""
    plan = (CRATE / "src" / "plan.rs").read_text()
    return [CRATE / "src" / name for name in re.findall(r'include_str!\("(.*?)"\)', plan)]


class Socket:
    """Frames on a socket: a big-endian length and JSON."""

    def __init__(self, sock: socket.socket):
        sock.settimeout(LIMIT_S)
        self.sock, self.file = sock, sock.makefile("rb")

    def send(self, data: bytes) -> None:
        self.sock.sendall(struct.pack(">I", len(data)) + data)

    def send_json(self, value: Any) -> None:
        self.send(json.dumps(value).encode())

    def read(self) -> Any:
        size = self.file.read(4)
        if len(size) < 4:
            raise EOFError("the runner has closed a socket")
        return json.loads(self.file.read(int.from_bytes(size, "big")))

    def close(self) -> None:
        self.file.close()
        self.sock.close()


class Runner:
    """Process of a runner that has loaded a model, with one slot for `handle`."""

    def __init__(self, model: Path, name: str | None = None, **more: Any):
        """Starts it; `more` are fields of its first message."""
        boot, *parts = (path.read_text() for path in files())
        ours, theirs = socket.socketpair()
        address, token = f"nsbridge-test-{secrets.token_hex(8)}", secrets.token_hex(8)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0" + address)
        listener.listen()
        listener.settimeout(LIMIT_S)
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", boot],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=model.parent,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        theirs.close()
        self.control, self.slots = Socket(ours), []
        self.control.send("".join(parts).encode())
        start = {"address": address, "token": token, "slots": 1, "file": str(model), "class": name}
        start |= {"models": {}, "options": {}, "batch": None, "output": None, "load": True}
        start |= {"engine": False, "slots_of_engine": False}
        start |= {"default_batch": {"size": 4, "delay_ms": 0}, "show_output": True}
        self.control.send_json({**start, "dumpable": True, **more})
        with listener:
            self._accept(listener, token)
            said = self.control.read()
            if "failed" in said:
                self.close()
                raise RuntimeError(said["failed"])
            self.schema, self.calls = said["ready"]["schema"], 0
            while len(self.slots) < said["ready"]["slots"]:
                self._accept(listener, token)

    def _accept(self, listener: socket.socket, token: str) -> None:
        slot = Socket(listener.accept()[0])
        if slot.read()["hello"] != {"token": token, "slot": len(self.slots)}:
            raise RuntimeError("a slot connected with another number or token")
        self.slots.append(slot)

    def answer(self, input: Any, seed: int = 0, resumed: list[Any] | None = None) -> dict[str, Any]:
        """Returns what the runner says of a call: pieces, the maximum number of them, and its end."""
        slot, self.calls = self.slots[0], self.calls + 1
        head = {"call": self.calls, "id": "a", "seed": seed, "attempt": 1, "tenant": "default"}
        slot.send_json({**head, "scope": "test", "submitted_at": 0.0, "deadline": 9e9})
        slot.send_json(input)
        told: dict[str, Any] = {"pieces": [], "at_most": None}
        while True:
            said = slot.read()
            if said == "resumed":
                slot.send_json({"resumed": resumed or []})
                told["pieces"] += resumed or []
            elif said != "begun" and "piece" in said:
                told["pieces"].append(said["piece"])
                slot.send_json({"more": 4096})
            elif said != "begun":
                told.update(said)
                if "end" in said or "error" in said:
                    return told

    def close(self) -> None:
        """Ends the process, which ends itself when the control socket is closed."""
        for sock in [self.control, *self.slots]:
            sock.close()
        try:
            self.printed = self.process.communicate(timeout=LIMIT_S)[0].decode()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
