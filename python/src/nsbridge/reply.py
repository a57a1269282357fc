"""Replies in asyncio."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Generator
from dataclasses import replace
from typing import Any, Callable, Generic, Protocol

from .constants import REASONS, USAGE
from .errors import Closed, Error, Restarted, failure
from .events import Done, EnqueuedAgain, Event, Hint, Moved, Opened, Piece, Restart, Waiting
from .frames import RequestHead
from .inquiry import Inquiry, Timing
from .keyring import DataKey
from .merge import Event as Raw
from .pending import Pending, Progress
from .request import Request, ResumePoint, traceparent
from .router import Router
from .text import P, Result, Summary, Usage, join

AT_ONCE = 1024  # events that are taken at once, for a caller on another thread


class Connected(Protocol):
    """Client, as a reply uses it."""

    @property
    def router(self) -> Router: ...

    @property
    def timing(self) -> Timing: ...

    async def data_key(self, model: str, tenant: str) -> DataKey: ...

    def drop(self, pending: Pending) -> None: ...


class AsyncReply(Generic[P]):
    """Reply in progress.

    Awaiting it, entering it or iterating over it submits the request, once. An iteration returns
    the pieces. Leaving its context or dropping it before its end cancels the request.
    """

    def __init__(self, client: Connected, request: Request, read: Callable[[bytes], P]):
        request.check()
        self._client, self._request, self._decode = client, request, read
        self._pending: Pending | None = None
        self._point: ResumePoint | None = None
        self._ready: deque[Event[P]] = deque()
        self._over = False
        self.summary: Summary | None = None
        """End of the reply; None before it is complete."""
        self.restarts = 0
        """Number of restarts so far."""

    def __repr__(self) -> str:
        state = "in progress" if self._pending else "not submitted"
        if self._over:
            state = self.finish_reason or "ended"
        return f"<nsbridge.AsyncReply of {self._request.model!r}, id {self.id}, {state}>"

    def __await__(self) -> Generator[Any, None, AsyncReply[P]]:
        return self._started().__await__()

    async def _started(self) -> AsyncReply[P]:
        if self._pending is None:
            if self._over:
                raise Closed("the reply was cancelled before it was submitted")
            await self._start()
        return self

    async def _start(self) -> None:
        request, client, loop = self._request, self._client, asyncio.get_running_loop()
        router = client.router
        point = self._point = request.begin()
        key = await client.data_key(request.model, request.tenant)
        name, now = uuid.UUID(point.id).bytes, loop.time()
        head = RequestHead(
            name, point.created_at_ms, point.expires_at_ms, request.model, request.tenant, key.id
        )
        content = request.content(point.seed)
        inquiry = Inquiry(key, head, content, now, client.timing, request.replay_key)
        inquiry.merge.after(point.pieces, point.fingerprint)
        pending = self._pending = Pending(
            inquiry,
            loop.create_future(),
            deadline=now + point.expires_at_ms / 1000 - time.time(),
            bulk=request.bulk,
            trace=traceparent(request.trace),
            epoch=point.clients,
            read=len(point.pieces),
        )
        try:
            await router.submit(pending)
        except BaseException:
            self._over = True
            raise

    async def __aenter__(self) -> AsyncReply[P]:
        return await self._started()

    async def __aexit__(self, *_: object) -> None:
        await self.cancel()

    def __aiter__(self) -> AsyncIterator[P]:
        return self

    async def __anext__(self) -> P:
        while True:
            event = await self._next()
            if event is None:
                raise StopAsyncIteration
            if isinstance(event, Piece):
                return event.value
            if isinstance(event, Restart):
                raise Restarted(event.kept)

    async def events(self) -> AsyncIterator[Event[P]]:
        """Returns all events of the reply. The last one is `Done`, or an error is raised."""
        while (event := await self._next()) is not None:
            yield event

    async def collect(self) -> Result[P]:
        """Reads the whole reply."""
        pieces: list[P] = []
        async for event in self.events():
            if isinstance(event, Piece):
                pieces.append(event.value)
            elif isinstance(event, Restart):
                if event.kept < self._before:  # pieces of the earlier client do not stand
                    raise Restarted(event.kept)
                del pieces[event.kept - self._before :]
        if self.summary is None:
            raise Closed("the reply was cancelled")
        return Result(pieces, self.summary)

    async def read(self) -> str:
        """Reads the whole reply and returns its text."""
        return join((await self.collect()).pieces)

    async def _next(self) -> Event[P] | None:
        await self.fill()
        return self._ready.popleft() if self._ready else None

    async def fill(self) -> None:
        """Waits until there is an event to take, or the reply has ended."""
        await self._started()
        assert self._pending is not None
        while not self._ready and not self._over:
            self._convert(await self._pending.get())

    def take_ready(self) -> list[Event[P]]:
        """Takes events that are there, without waiting. Raises the error of the reply."""
        pending = self._pending
        if pending is None:
            return []
        while len(self._ready) < AT_ONCE and pending.ready and not self._over:
            last = pending.inbox[0].kind in ("failed", "error")
            if last and self._ready:  # raised by the next call, after these events
                break
            self._convert(pending.take_first())
        taken, self._ready = list(self._ready), deque()
        return taken

    def _convert(self, raw: Raw) -> None:
        kind, value = raw.kind, raw.value
        if kind == "pieces":
            try:
                self._ready.extend([Piece(self._decode(piece)) for piece in value])
            except Error:
                self.drop()
                raise
        elif kind == "restarted":
            self.restarts += 1
            self._ready.append(Restart(value))
        elif kind == "opened":
            event = Opened(value["attempt"], value["worker"], value.get("revision"))
            self._ready.append(event)
        elif kind == "moved":
            self._ready.append(Moved())
        elif kind == "waiting":
            self._ready.append(Waiting(value))
        elif kind == "enqueued":
            self._ready.append(EnqueuedAgain(value))
        elif kind == "hint":
            self._ready.append(Hint(value))
        elif kind == "done":
            self.summary = summary(value)
            self._ready.append(Done(self.summary))
            self._over = True
        elif kind == "failed":
            self._over = True
            raise failure(value["code"], value["message"])
        elif kind == "error":
            self._over = True
            raise value

    def drop(self) -> None:
        """Cancels the request without waiting for the broker."""
        self._over = True
        if self._pending is not None and not self._pending.over:
            self._client.router.end(self._pending, None)

    async def cancel(self) -> None:
        """Cancels the request, and waits until its workers were told. No further event comes."""
        runs = self._pending is not None and not self._pending.over
        self.drop()
        self._ready.clear()
        if runs:
            await self._client.router.flush()

    def __del__(self) -> None:
        pending = getattr(self, "_pending", None)
        if pending is not None and not pending.over:
            self._client.drop(pending)

    @property
    def _before(self) -> int:
        """Number of pieces that an earlier client has."""
        return len(self._point.pieces) if self._point else 0

    @property
    def _progress(self) -> Progress | None:
        return self._pending.progress() if self._pending else None

    @property
    def id(self) -> str | None:
        """Id of the request, which is safe to log; None before it is submitted."""
        return self._point.id if self._point else None

    @property
    def seed(self) -> int | None:
        """Seed of the reply, with which it can be made again; None before it is submitted."""
        return self._point.seed if self._point else self._request.seed

    @property
    def usage(self) -> Usage | None:
        """Numbers of tokens; None before the reply is complete."""
        return self.summary.usage if self.summary else None

    @property
    def finish_reason(self) -> str | None:
        """Reason for the end: `stop`, `length` or `stop_text`; None before the end."""
        return self.summary.finish_reason if self.summary else None

    @property
    def revision(self) -> str | None:
        """Revision of the model that made the pieces so far, if its worker knows one."""
        return self._progress.revision if self._progress else None

    @property
    def attempt(self) -> int | None:
        """Number of the attempt that made the last piece. It changes with the worker."""
        return self._progress.attempt if self._progress else None

    @property
    def copies(self) -> int:
        """Number of copies of the request that were enqueued."""
        return len(self._pending.inquiry.merge.roots) if self._pending else 0

    @property
    def sealed_bytes(self) -> int:
        """Number of sealed bytes that were sent and received."""
        return self._pending.sealed_bytes if self._pending else 0

    def resume_point(self) -> ResumePoint:
        """Returns the state from which another client can continue the request."""
        if self._point is None or self._progress is None:
            raise Closed("the request is not submitted yet")
        progress, clients = self._progress, self._point.clients + self.copies
        pieces = list(progress.pieces)
        return replace(
            self._point, clients=clients, fingerprint=progress.fingerprint, pieces=pieces
        )


def summary(body: dict[str, Any]) -> Summary:
    """Returns the end of a reply; an unknown finish reason is `stop`."""
    reason, usage = body["finish_reason"], body["usage"]
    counts = {name: usage[name] for name in USAGE if name in usage}
    return Summary(body["pieces"], reason if reason in REASONS else "stop", Usage(**counts))
