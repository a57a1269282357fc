"""Broker that a test plays, and an event loop whose time does not pass by itself."""

from __future__ import annotations

import asyncio
import heapq
import unittest
from collections import deque
from collections.abc import Coroutine

import worker
from nsbridge import AsyncClient, Keyring
from nsbridge.broker import Answer, Message
from worker import KEY, WORDS, Attempt


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop that advances its clock to the next timer when nothing else is ready."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self):
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0]._when)
        super()._run_once()


class ScriptedBroker:
    """Broker's end of a client. `answers` are those to the next requests; then all are taken."""

    def __init__(self):
        self.sent: list[Message] = []
        self.at: list[float] = []
        self.controls: list[Message] = []
        self.answers: deque[Answer | Exception] = deque()
        self.closed = False

    async def connect(self, queue, watcher) -> None:
        self.watcher = watcher
        watcher.listening(False)

    async def publish(self, message: Message) -> Answer:
        if message.exchange:
            self.controls.append(message)
            return Answer.TAKEN
        self.sent.append(message)
        self.at.append(asyncio.get_running_loop().time())
        answer = self.answers.popleft() if self.answers else Answer.TAKEN
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed = True

    def take(self, *frames: bytes, reply_to: str | None = None) -> None:
        """Delivers frames to the client."""
        for frame in frames:
            self.watcher.take(frame, reply_to, None)

    def attempt(self, copy: int, number: int = 1, **more) -> Attempt:
        """Returns the stream of a worker that took this copy."""
        head, _, root = worker.open_request(self.sent[copy].body, KEY)
        return Attempt(number, root=root, request_id=head.id, **more)

    def answer(self, copy: int) -> None:
        """Delivers a whole reply to this copy."""
        a = self.attempt(copy)
        self.take(a.open, a.data(0, WORDS), a.finish(WORDS), reply_to="b")

    def opened_controls(self) -> list[tuple[str, int, bytes]]:
        """Returns key, kind and content of each control frame; tries the roots of all copies."""
        found = []
        for message in self.controls:
            for sent in self.sent:
                root = worker.open_request(sent.body, KEY)[2]
                try:
                    found.append((message.key, *worker.open_control(message.body, root)))
                    break
                except worker.Refused:
                    pass
        return found


class Scripted(unittest.TestCase):
    """Test with a scripted broker, in virtual time."""

    def setUp(self):
        self.broker = ScriptedBroker()

    def play(self, script: Coroutine) -> None:
        """Runs a script to its end."""
        loop = VirtualLoop()
        try:
            loop.run_until_complete(asyncio.wait_for(script, 100_000))
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def client(self) -> AsyncClient:
        return AsyncClient(self.broker, Keyring.of_key("dev", KEY), tenant="t")
