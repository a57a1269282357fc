"""State of one request at its client, between the router and the caller's reply."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from .constants import MAX_HINTS
from .errors import Closed, Deadline, Error, Truncated
from .inquiry import Inquiry
from .merge import Event, Merge



@dataclass(frozen=True)
class Progress:
    """State of a reply so far."""

    pieces: list[bytes] = field(repr=False)
    fingerprint: str | None
    revision: str | None
    attempt: int | None
    gap: bool

    @classmethod
    def of(cls, merge: Merge) -> Progress:
        """Returns the state of a merge; its list of pieces is not copied."""
        author = merge.author
        return cls(
            merge.pieces,
            merge.holder.fingerprint if merge.holder else None,
            author.revision if author else None,
            author.rank[1] if author and author.root else None,
            merge.gap,
        )


@dataclass(eq=False, repr=False)  # it has the text of the reply
class Pending:
    """Request that waits for its reply, or ended recently."""

    inquiry: Inquiry
    ended: asyncio.Future[None]
    deadline: float
    """Time of the event loop."""
    bulk: bool
    trace: str
    epoch: int
    """Number of copies that earlier clients enqueued."""
    inbox: deque[Event] = field(default_factory=deque)
    """Events for the caller. Those of pieces say how far to read the pieces of the merge."""
    read: int = 0
    """Pieces that the caller has, or that a restart in the inbox leaves to it."""
    waiter: asyncio.Future[None] | None = None
    hints: list[str] = field(default_factory=list)
    attempt_span: str | None = None
    sealed_bytes: int = 0
    over: bool = False
    last: Progress | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def id(self) -> bytes:
        """Id of the request."""
        return self.inquiry.head.id

    @property
    def ready(self) -> bool:
        """True if there is an event to take."""
        while self.inbox and self.inbox[0].kind == "pieces":
            if min(self.inbox[0].value, len(self._pieces)) > self.read:
                break
            self.inbox.popleft()  # its pieces were read, or withdrawn before that
        return bool(self.inbox)

    @property
    def name(self) -> str:
        """Id of the request as text."""
        return str(uuid.UUID(bytes=self.id))

    @property
    def _pieces(self) -> list[bytes]:
        return self.last.pieces if self.last else self.inquiry.merge.pieces

    def progress(self) -> Progress:
        """Returns the state of the reply so far."""
        return self.last or Progress.of(self.inquiry.merge)

    def put(self, event: Event) -> None:
        """Passes an event to the caller. Hints can be forged, so their number is limited."""
        if event.kind == "hint":
            if event.value in self.hints or len(self.hints) >= MAX_HINTS:
                return
            self.hints.append(event.value)
        if event.kind == "restarted":
            self._restart(event.value)
        elif event.kind == "pieces":
            if self.inbox and self.inbox[-1].kind == "pieces":
                self.inbox.pop()
            self.inbox.append(Event("pieces", len(self._pieces)))
        else:
            self.inbox.append(event)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def _restart(self, kept: int) -> None:
        """Withdraws the pieces from this one on. The caller learns of those that it has."""
        if kept < self.read:
            self.read = kept
            others = [event for event in self.inbox if event.kind not in ("pieces", "restarted")]
            self.inbox = deque([*others, Event("restarted", kept)])

    async def get(self) -> Event:
        """Waits for the next event. Raises `Closed` after the last one."""
        while not self.ready:
            if self.over:
                raise Closed("the reply has ended")
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        return self.take_first()

    def take_first(self) -> Event:
        """Takes the first event. That of pieces is the next piece."""
        if self.inbox[0].kind != "pieces":
            return self.inbox.popleft()
        self.read += 1
        return Event("pieces", self._pieces[self.read - 1 : self.read])

    def end(self, event: Event | None) -> None:
        """Ends the request with its last event, and frees what late workers do not need."""
        self.over = True
        if self.timer is not None:
            self.timer.cancel()
        self.last = Progress.of(self.inquiry.merge)
        if event is not None:
            self.put(event)
        elif self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        if not self.ended.done():
            self.ended.set_result(None)
        self.inquiry.content = b""
        self.inquiry.merge.over = True
        self.inquiry.merge.shed()

    def late(self) -> Error:
        """Returns the error for a reply that is not complete at its deadline."""
        progress = self.progress()
        count, hint = len(progress.pieces), self.hints[-1] if self.hints else None
        if progress.gap:
            return Truncated(
                f"frames after the first {count} pieces were lost and did not come in time",
                pieces=count,
                hint=hint,
            )
        hinted = f"; a worker hints: {hint} (not authenticated)" if hint else ""
        why = f"no complete reply in time, {count} pieces{hinted}"
        return Deadline(why, pieces=count, hint=hint)


def failed(error: BaseException) -> Event:
    """Returns the event of an error that the caller of a reply receives."""
    value: Any = error
    return Event("error", value)
