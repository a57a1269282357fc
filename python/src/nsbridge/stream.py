"""One stream of a reply: the frames of one attempt (rule C2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from .constants import FINAL_ERROR, FINAL_OK, MAX_AHEAD, MOVED, OPEN
from .frames import ReplyHead, strip
from .keys import FrameKey, Refused

Rank = tuple[int, int, int, bytes]
"""Order of streams: enqueue, attempt number, `opened_at_ms`, stream id."""

LIVE, STALE, ENDED = "live", "stale", "ended"
LAST = (FINAL_OK, FINAL_ERROR, MOVED)


@dataclass(eq=False, repr=False)
class Stream:
    """Reply of one attempt, as far as it was read."""

    keys: FrameKey
    rank: Rank
    root: bytes
    reply_to: str | None
    fingerprint: str | None
    revision: str | None = None
    next: int = 1
    position: int | None = None  # index of the next piece; None before the first piece
    chunks: int = 0
    size: int = 0  # bytes of the pieces before `position` in this stream
    state: str = LIVE  # of a stale stream only the end matters
    # Kind, content type and content by sequence number.
    ahead: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)

    def keep(self, head: ReplyHead, frame: bytes) -> bool:
        """Rule C2: keeps a frame that verifies. Returns False for a repeated frame.

        The frame is decrypted at once, because a forged frame must not take the place of the true
        one. There is one more place for the last frame: it shows that missing frames will not come.
        """
        if self.state == ENDED or head.seq < self.next or head.seq in self.ahead:
            return False
        if head.kind == OPEN:
            raise Refused("a stream opens once")
        content_type, content = strip(self.keys.open(head.seq, 48, frame))
        if head.seq > self.next and len(self.ahead) >= MAX_AHEAD + (head.kind in LAST):
            return False
        self.ahead[head.seq] = (head.kind, content_type, content)
        return True

    def turn(self) -> tuple[int, int, bytes] | None:
        """Returns the next frame in sequence as (kind, content type, content), if it has come."""
        frame = self.ahead.pop(self.next, None)
        self.next += frame is not None
        return frame

    def distrust(self) -> None:
        """Makes a live stream stale: its pieces do not count any more."""
        if self.state == LIVE:
            self.state = STALE

    def end(self) -> None:
        """Ends the stream."""
        self.state = ENDED
        self.ahead.clear()

    @property
    def gap(self) -> bool:
        """True if frames are missing before a frame that came; they may still come."""
        return self.state == LIVE and bool(self.ahead)
