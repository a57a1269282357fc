"""Client process of a round, in Python: submits the requests of its plan through the production
client and records every event, as `client.rs` does.

The driver starts it with a configuration file, and PYTHONPATH names the client's sources.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import threading
import time

from nsbridge import AsyncClient, constants, errors, events
from nsbridge.amqp import Amqp
from nsbridge.text import TextPiece

REQUEST = b"NSBQ"
NOBODYS_QUEUE = f"nsbridge.reply.{0:032x}"
FORGED_COUNT = 40  # above every limit of a worker
LOOK_EVERY_S = 0.02
REFUSED_PAUSE_S = 1
FORGED_HEADERS = {"x-delivery-count": FORGED_COUNT, "x-acquired-count": FORGED_COUNT}


class Journal:
    """Journal of the round, one write for each line."""

    def __init__(self, folder: str):
        path = os.path.join(folder, "journal.jsonl")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def note(self, what: str, **fields) -> None:
        line = {"at": time.clock_gettime_ns(time.CLOCK_BOOTTIME), "what": what, **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")


class Watched(Amqp):
    """Broker that records each sealed request and each subscription, and applies the tricks."""

    def __init__(self, url: str, name: str, journal: Journal, trick: str):
        super().__init__(url, name=name)
        self._journal, self._trick = journal, trick

    async def connect(self, queue, watcher) -> None:
        await super().connect(queue, Hearing(watcher, self._journal))

    async def publish(self, message):
        if not message.body.startswith(REQUEST):
            return await super().publish(message)
        self._journal.note("enqueue", request=message.message_id, frame=message.body.hex())
        if self._trick == "Twice":
            await super().publish(message)
        elif self._trick == "ForgedReplyTo":
            await super().publish(dataclasses.replace(message, reply_to=NOBODYS_QUEUE))
        elif self._trick == "ForgedCount":
            headers = {**message.headers, **FORGED_HEADERS}
            message = dataclasses.replace(message, headers=headers)
        return await super().publish(message)


class Hearing:
    """Watcher of the broker that records when replies can be received."""

    def __init__(self, watcher, journal: Journal):
        self._watcher, self._journal = watcher, journal
        self.take, self.rename = watcher.take, watcher.rename

    def listening(self, lost: bool) -> None:
        self._journal.note("listening", pid=os.getpid(), hears=True)
        self._watcher.listening(lost)

    def disconnected(self) -> None:
        self._journal.note("listening", pid=os.getpid(), hears=False)
        self._watcher.disconnected()


class Gate:
    """Gate of the round: callers that read late wait until the driver opens it."""

    def __init__(self, folder: str):
        self._file = os.path.join(folder, "gate")

    @property
    def is_open(self) -> bool:
        return os.path.exists(self._file)


def options(ask: dict) -> dict:
    """Returns the options of a request."""
    return {
        "read": TextPiece.read,
        "seed": ask["seed"],
        "bulk": ask["priority"] == "bulk",
        "timeout": ask["timeout_ms"] / 1000,
    }


class Record:
    """Record of one request in the journal."""

    def __init__(self, journal: Journal, n: int):
        self._journal, self._n, self.pieces = journal, n, 0

    def note(self, what: str, request: str, **fields) -> None:
        self._journal.note(what, n=self._n, request=request, **fields)

    def take(self, request: str, event) -> None:
        """Records an event of the reply."""
        if isinstance(event, events.Piece):
            piece, index = event.value, self.pieces
            of = {"choice": piece.index, "finish_reason": piece.finish_reason}
            self.note("piece", request, index=index, text=piece.text, **of)
            self.pieces += 1
        elif isinstance(event, events.Restart):
            self.pieces = event.kept
            self.note("restarted", request, kept=event.kept)
        elif isinstance(event, events.Waiting):
            self.note("waiting", request)
        elif isinstance(event, events.Hint):
            self.note("hint", request, code=event.code)
        elif isinstance(event, events.Done):
            self.note("done", request)

    def failed(self, request: str, error: errors.Error) -> None:
        """Records the error that ended the reply."""
        self.note("failed", request, code=code(error), message=str(error))


class Caller:
    """Caller of one request."""

    def __init__(self, client: AsyncClient, gate: Gate, ask: dict, record: Record):
        self._client, self._gate, self._ask, self._record = client, gate, ask, record

    async def ask(self, model: str, began: float) -> None:
        ask, request = self._ask, ""
        await asyncio.sleep(began + ask["after_ms"] / 1000 - time.monotonic())
        reply = self._client.submit(model, ask["order"], **options(ask))
        try:
            try:
                request = (await reply).id
            except errors.QueueFull:
                if not ask["insists"]:
                    raise
                await asyncio.sleep(REFUSED_PAUSE_S)
                return await self.ask(model, began)
            self._record.note("asked", request)
            await self._read(reply, request, ask["reading"])
        except errors.Error as error:
            self._record.failed(request, error)

    async def _read(self, reply, request: str, reading) -> None:
        limits = reading if isinstance(reading, dict) else {}
        while reading == "AfterGate" and not self._gate.is_open:
            await asyncio.sleep(LOOK_EVERY_S)
        async for event in reply.events():
            self._record.take(request, event)
            if self._record.pieces == limits.get("UntilPiece"):
                self._record.note("cancelled", request)
                await reply.cancel()
                return


def code(error: errors.Error) -> str:
    """Returns a code for each kind of failure; one reported by a worker has its error code."""
    own = [
        (errors.Truncated, "truncated"),
        (errors.Deadline, "late"),
        (errors.NoSuchModel, "no-such-model"),
        (errors.QueueFull, "queue-full"),
        (errors.Closed, "closed"),
    ]
    return next((name for kind, name in own if isinstance(error, kind)), error.code or "other")


def leave_with_the_starter() -> None:
    """Ends the process when its standard input closes: its parent has ended in whatever way."""

    def wait() -> None:
        # Not by `sys.stdin`: a thread that holds its lock aborts the interpreter's shutdown.
        while os.read(0, 4096):
            pass
        os._exit(3)

    threading.Thread(target=wait, daemon=True).start()


async def submit_all(config: dict) -> None:
    limit = config["reply_queue_bytes"]
    if limit is not None:
        constants.REPLY_QUEUE_ARGUMENTS["x-max-length-bytes"] = limit
    name, journal = config["name"], Journal(config["dir"])
    broker, gate = Watched(config["url"], name, journal, config["trick"]), Gate(config["dir"])
    async with AsyncClient(broker, config["keyring"], tenant="chaos") as client:
        queue = client.reply_queue
        journal.note("client", pid=os.getpid(), name=name, reply_queue=queue)
        # The wire tap must receive the first frame, so requests are submitted only after the driver has
        # started it.
        if not await asyncio.get_running_loop().run_in_executor(None, os.read, 0, 64):
            raise SystemExit("the driver is gone")
        leave_with_the_starter()
        began = time.monotonic()
        callers = [
            Caller(client, gate, ask, Record(journal, ask["order"]["n"])) for ask in config["asks"]
        ]
        await asyncio.gather(*(caller.ask(config["model"], began) for caller in callers))
        # After the last event, the reply still has control messages to send to its worker.
        await asyncio.sleep(2)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        asyncio.run(submit_all(json.load(file)))
