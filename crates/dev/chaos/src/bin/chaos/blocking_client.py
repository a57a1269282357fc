"""Client process of a round, in Python without asyncio: `client.py` with `nsbridge.Client` and a thread
for each caller. It plays neither tricks nor callers that cancel.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import client
from nsbridge import Client, errors


class Caller:
    """Caller of one request, in a thread of its own."""

    def __init__(self, connected: Client, gate: client.Gate, ask: dict, record: client.Record):
        self._client, self._gate, self._ask, self._record = connected, gate, ask, record

    def ask(self, model: str, began: float) -> None:
        ask, request = self._ask, ""
        time.sleep(max(0, began + ask["after_ms"] / 1000 - time.monotonic()))
        try:
            reply = self._client.submit(model, ask["order"], **client.options(ask))
            request = reply.id
            self._record.note("asked", request)
            while ask["reading"] == "AfterGate" and not self._gate.is_open:
                time.sleep(client.LOOK_EVERY_S)
            for event in reply.events():
                self._record.take(request, event)
        except errors.Error as error:
            self._record.failed(request, error)


def submit_all(config: dict) -> None:
    name, journal, gate = config["name"], client.Journal(config["dir"]), client.Gate(config["dir"])
    broker = client.Watched(config["url"], name, journal, config["trick"])
    with Client(broker, config["keyring"], tenant="chaos") as connected:
        queue = connected.aio.reply_queue
        journal.note("client", pid=os.getpid(), name=name, reply_queue=queue)
        if not os.read(0, 64):
            raise SystemExit("the driver is gone")
        client.leave_with_the_starter()
        began = time.monotonic()
        callers = [
            Caller(connected, gate, ask, client.Record(journal, ask["order"]["n"]))
            for ask in config["asks"]
        ]
        arguments = (config["model"], began)
        threads = [threading.Thread(target=caller.ask, args=arguments) for caller in callers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(2)  # for control messages, as in `client.py`


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        submit_all(json.load(file))
