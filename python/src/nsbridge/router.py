"""Requests of one client: publishes their copies, and gives each frame to its request."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import OrderedDict, deque
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from .broker import Answer, Broker, Message, control_message, request_message
from .errors import BrokerError, Closed, NoSuchModel, QueueFull
from .frames import error_hint, reply_head, seal_control
from .inquiry import Timing
from .keys import Refused
from .merge import Copy, Event, Letter
from .pending import Pending, failed

TOMBSTONES = 10_000  # ended requests that are remembered, to answer late workers
FLUSH_S = 5  # time for control frames when a reply is cancelled or the client closes


class Router:
    """Requests that wait for replies or ended recently, on one reply queue."""

    def __init__(self, broker: Broker, timing: Timing):
        self.broker, self.timing = broker, timing
        self.rename()
        self.pending: dict[bytes, Pending] = {}
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._letters: set[asyncio.Task[None]] = set()
        self._connected = False
        self._watch: asyncio.Task[None] | None = None

    def rename(self) -> str:
        """Draws the name of the reply queue, and returns it."""
        self.queue = f"nsbridge.reply.{secrets.randbits(128):032x}"
        return self.queue

    async def start(self) -> None:
        """Connects the reply queue."""
        await self.broker.connect(self.queue, self)
        self._watch = self._loop.create_task(self._look_after())

    # The broker calls `rename` and these three.

    def take(self, frame: bytes, reply_to: str | None, span: str | None) -> None:
        """Processes a message of the reply queue. Nothing that it holds raises an error."""
        hint = error_hint(frame)
        if hint is not None:
            pending = self.pending.get(hint[0])
            if pending is not None and not pending.over:
                pending.put(Event("hint", hint[1]))
            return
        try:
            pending = self.pending.get(reply_head(frame).request_id)
        except Refused:
            return
        if pending is None:
            return
        merge = pending.inquiry.merge
        heard = merge.heard
        try:
            events = pending.inquiry.feed(frame, reply_to, self._loop.time())
        except Exception as error:  # of the caller's own replay key
            self.end(pending, failed(error))
            return
        if merge.heard != heard:
            pending.sealed_bytes += len(frame)
        self._handle(pending, events, span)

    def disconnected(self) -> None:
        """Stops the clock of all requests: no time counts without a connection."""
        self._connected = False

    def listening(self, lost: bool) -> None:
        """Starts the clock again; `lost` if the replies in the queue were lost."""
        self._connected, now = True, self._loop.time()
        for pending in self.pending.values():
            pending.inquiry.listening = now
            if lost:
                pending.inquiry.queue_lost(now)

    def _handle(self, pending: Pending, events: list[Event], span: str | None = None) -> None:
        before = pending.attempt_span
        for event in events:
            if event.kind == "control":
                self._send(pending, event.value, before)
            elif event.kind == "opened":
                pending.attempt_span = span or before
                pending.put(event)
            elif event.kind == "enqueue":
                self._run(self._enqueue(pending, event.value), self._tasks)
                pending.put(Event("enqueued", len(pending.inquiry.merge.roots)))
            elif event.kind in ("done", "failed"):
                self._bury(pending, event)
            else:
                pending.put(event)

    def _send(self, pending: Pending, letter: Letter, before: str | None) -> None:
        """Publishes a control frame without a retry: a worker that misses one reads the next."""
        salt, head = secrets.token_bytes(32), pending.inquiry.head
        frame = seal_control(letter.root, salt, head.id, letter.kind, letter.content)
        message = control_message(head.id, letter.key or head.model, frame, before)

        async def send() -> None:
            with contextlib.suppress(BrokerError):
                await self.broker.publish(message)

        self._run(send(), self._letters)

    def _run(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        if self.closed:
            work.close()
            return
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def submit(self, pending: Pending) -> None:
        """Publishes the first copy of a request. Returns when the broker has confirmed it."""
        if self.closed:
            raise Closed("the client was closed")
        earlier = self.pending.get(pending.id)
        if earlier is not None:
            self.end(earlier, failed(Closed("the request was submitted again")))
        copy = pending.inquiry.seal()
        # Registered before it is published: a reply may come before the confirm.
        self.pending[pending.id] = pending
        self._ended.pop(pending.id, None)
        pending.timer = self._loop.call_at(pending.deadline, self._expire, pending)
        publish = self._loop.create_task(self._publish_first(pending, copy))
        try:
            await asyncio.wait({publish, pending.ended}, return_when=asyncio.FIRST_COMPLETED)
            if publish.done():
                publish.result()
        except (NoSuchModel, QueueFull):
            self._bury(pending, None)
            raise
        except BaseException:
            self.end(pending, None)
            raise
        finally:
            publish.cancel()

    async def _publish_first(self, pending: Pending, copy: Copy) -> None:
        model = pending.inquiry.head.model
        answer = await self._publish(pending, copy, {Answer.REFUSED, Answer.RETURNED})
        if answer is Answer.RETURNED:
            raise NoSuchModel(
                f"there is no queue for the model {model}: start a worker for it, or check the name"
            )
        if answer is Answer.REFUSED:
            raise QueueFull(
                f"the broker refused a request for the model {model}: try again later; the queue is "
                "full, or most nodes of the broker are down"
            )

    async def _enqueue(self, pending: Pending, copy: Copy) -> None:
        """Publishes a new copy until the broker takes it. A full queue ends no request."""
        await self._publish(pending, copy, set())

    async def _publish(self, pending: Pending, copy: Copy, final: set[Answer]) -> Answer | None:
        """Publishes the bytes of a copy until the broker takes it, or gives a final answer."""
        pause = self.timing.pause
        while not pending.over:
            message = self._message(pending, copy)
            try:
                answer = await self.broker.publish(message)
                if answer is Answer.TAKEN or answer in final:
                    return answer
            except BrokerError:  # no answer: the bytes are published again
                pass
            await asyncio.sleep(pause)
            pause = min(2 * pause, self.timing.longest_pause)
        return None

    def _message(self, pending: Pending, copy: Copy) -> Message:
        pending.sealed_bytes += len(copy.frame)
        return request_message(
            pending.inquiry.head,
            copy,
            self.queue,
            bulk=pending.bulk,
            epoch=min(pending.epoch + copy.again, 65535),
            trace=pending.trace,
            before=pending.attempt_span if copy.again else None,
        )

    async def _look_after(self) -> None:
        """Reports silences, and enqueues requests again whose replies were lost (rule C6)."""
        looked = self._loop.time()
        while True:
            await asyncio.sleep(self.timing.check)
            now = self._loop.time()
            if now - looked >= self.timing.suspended:
                for pending in self.pending.values():
                    pending.inquiry.listening = now
            looked = now
            self._forget()
            if self._connected:
                for pending in list(self.pending.values()):
                    if not pending.over:
                        self._handle(pending, pending.inquiry.due(now))

    def _expire(self, pending: Pending) -> None:
        self.end(pending, failed(pending.late()))

    def end(self, pending: Pending, event: Event | None) -> None:
        """Ends a request, and cancels every running stream and every unopened copy."""
        if pending.over:
            return
        before = pending.attempt_span
        for letter in pending.inquiry.merge.cancels():
            self._send(pending, letter.value, before)
        self._bury(pending, event)

    def _bury(self, pending: Pending, event: Event | None) -> None:
        pending.end(event)
        if self.pending.get(pending.id) is pending:  # what remains has no text of the reply
            self.pending[pending.id] = replace(pending, inbox=deque(), last=None, timer=None)
            self._ended[pending.id] = None

    def _forget(self) -> None:
        """Forgets ended requests after their deadlines, and the oldest if there are too many."""
        now = self._loop.time()
        late = [name for name in self._ended if self.pending[name].deadline <= now]
        for name in late:
            del self._ended[name], self.pending[name]
        while len(self._ended) > TOMBSTONES:
            oldest, _ = self._ended.popitem(last=False)
            del self.pending[oldest]

    async def flush(self) -> None:
        """Waits until the control frames so far are published, for some seconds at most."""
        if self._letters:
            await asyncio.wait(set(self._letters), timeout=FLUSH_S)

    async def close(self) -> None:
        """Cancels all requests and closes the connections."""
        if self.closed:
            return
        for pending in list(self.pending.values()):
            self.end(pending, failed(Closed("the client was closed")))
        self.closed = True
        await self.flush()
        tasks = [*self._tasks, *self._letters, *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.broker.close()
