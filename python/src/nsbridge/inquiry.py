"""Waiting, and new copies of a request: rule C6."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Callable

from .constants import MAX_AGAIN
from .frames import RequestHead, seal_request
from .keyring import DataKey
from .merge import Copy, Event, Merge, text_replay_key


@dataclass(frozen=True)
class Timing:
    """Waiting times of a client, in seconds. The defaults are those of the protocol."""

    silence: float = 15
    """Time without a frame after which the caller is told that the client waits."""
    quiet: float = 6
    """Time after a loss until a new copy; live workers send a frame every 5 s."""
    silent: float = 90
    """Time until a new copy, once, of an opened request without any sign of a loss."""
    check: float = 0.5
    """Interval between checks of the times above."""
    pause: float = 0.2
    """First pause before a publish or a connection is tried again; it doubles."""
    longest_pause: float = 5
    """Longest such pause."""
    home_node: float = 5
    """Time limit for the broker's answer about the reply queue, after which its node counts as down."""
    suspended: float = 5
    """Delay of a check from which the process counts as suspended."""


class Inquiry:
    """One request from its first sealing to its end; the caller has the clock and the network."""

    def __init__(
        self,
        key: DataKey,
        head: RequestHead,
        content: bytes,
        now: float,
        timing: Timing = Timing(),
        replay_key: Callable[[bytes], bytes] = text_replay_key,
    ):
        self.key, self.head, self.content, self.timing = key, head, content, timing
        self.merge = Merge(head.id, [], replay_key)
        self.told = self.heard = now  # last report of a silence; last new frame
        self.asked = self.listening = now  # last enqueue; last subscription
        self.lost: float | None = None  # time of the loss, if nothing was heard since

    def seal(self) -> Copy:
        """Seals the request again, under a new salt and so with a reply root of its own."""
        salt = secrets.token_bytes(32)
        frame, root = seal_request(self.key.key, salt, self.head, self.content, self.key.wrapped)
        self.merge.enqueued(root)
        return Copy(frame, len(self.merge.roots) - 1)

    def feed(self, frame: bytes, reply_to: str | None, now: float) -> list[Event]:
        heard = self.merge.heard
        try:
            return self.merge.feed(frame, reply_to)
        finally:
            if self.merge.heard > heard:
                self.heard = self.told = now
                self.lost = None

    def queue_lost(self, now: float) -> None:
        """Records that the reply queue and its messages were lost."""
        self.lost = now

    def due(self, now: float) -> list[Event]:
        """Returns the events that are due after a silence."""
        if self.merge.over:
            return []
        events = []
        if now - self.told >= self.timing.silence:
            self.told = now
            events.append(Event("waiting", now - self.heard))
        copies = len(self.merge.roots)
        missing = self.lost is not None or self.merge.broken_end
        if missing:
            patience = self.timing.quiet
        elif self.merge.held and copies == 1:  # the broker may hold back a copy
            patience = self.timing.silent
        else:  # the request may wait for its turn
            return events
        moments = (self.heard, self.listening, self.lost, self.asked)
        since = max(moment for moment in moments if moment is not None)
        if copies <= MAX_AGAIN and now - since >= patience * (1 << (copies - 1)):
            self.asked = now
            if missing:
                self.lost = now  # another copy follows only if this one brings nothing
            events.append(Event("enqueue", self.seal()))
        return events
