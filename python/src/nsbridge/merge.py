"""Merging of the attempts at one request: rules C1 to C5."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple

from .constants import (
    CANCEL,
    DATA,
    FINAL_ERROR,
    FINAL_OK,
    MAX_EARLY,
    MAX_EARLY_BYTES,
    MAX_GONE,
    MAX_REPLY_BYTES,
    MAX_STREAMS,
    MAX_WORKERS,
    MOVED,
    OPEN,
    PIECES,
    PLAIN,
    RESUME,
)
from .contents import read_failure, read_open, read_summary
from .frames import ReplyHead, error_hint, read_pieces, reply_head, start, strip, write_resume
from .keys import FrameKey, Refused, reply_keys
from .stream import ENDED, LIVE, Rank, Stream


def text_replay_key(piece: bytes) -> bytes:
    """Returns the replay key of a text piece: token id and text, without log-probabilities."""
    try:
        value = json.loads(piece)
        text: str = value["text"]
        return struct.pack(">I", value["token"]) + text.encode()
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, struct.error):
        return piece


class Event(NamedTuple):
    """Result of a frame: opened, pieces, restarted, moved, done, failed, hint or control.

    The value of a `control` is a `Letter`. A silence leads to `waiting`, and to `enqueue` with
    a `Copy`.
    """

    kind: str
    value: Any = None

    def __repr__(self) -> str:
        return f"Event({self.kind!r}, ..)"  # without the text of the reply


class Letter(NamedTuple):
    """Control frame to seal and send."""

    kind: int
    content: bytes
    key: str | None  # the worker's control queue; None: all workers of the model
    root: bytes  # reply root of the copy; workers of other copies cannot open it

    def __repr__(self) -> str:
        return f"Letter({self.kind}, ..)"  # without the root


class Copy(NamedTuple):
    """Sealed request to enqueue."""

    frame: bytes
    again: int  # number of copies enqueued before it


@dataclass(repr=False)  # it has the text of the reply
class Merge:
    """Reply of one request, merged from all the streams that answer it."""

    request_id: bytes
    roots: list[bytes]  # reply roots, in the order of enqueue
    replay_key: Callable[[bytes], bytes] = text_replay_key
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0  # bytes of the pieces and their lengths
    streams: dict[bytes, Stream] = field(default_factory=dict)  # at most four, ended ones included
    gone: dict[bytes, None] = field(default_factory=dict)  # ids of evicted streams
    workers: list[Stream] = field(default_factory=list)  # the newest streams that have not ended
    early: list[bytes] = field(default_factory=list)  # frames whose stream has not opened yet
    events: list[Event] = field(default_factory=list)  # events that were not returned yet
    over: bool = False  # done, failed or canceled: later opens get a `cancel`
    holder: Stream | None = None  # the stream that last extended the pieces
    newest: Stream | None = None  # the stream that opened last
    answered: set[bytes] = field(default_factory=set)  # roots under which a stream was opened
    heard: int = 0  # frames that verified, each counted once
    highest: Rank | None = None  # the rank of the highest stream that ever opened
    moved: Rank | None = None  # the rank of the highest stream that ended in `moved`
    broken_end: bool = False  # an end came that does not fit the frames before it

    def after(self, pieces: list[bytes], fingerprint: str | None) -> None:
        """Continues the reply of an earlier client, which every stream of this one outranks."""
        if pieces:
            keys, before = FrameKey(bytes(76)), (-1, 0, 0, b"")
            self.holder = Stream(keys, before, b"", None, fingerprint, state=ENDED)
        self.pieces = list(pieces)
        self.size = sum(len(piece) + 4 for piece in pieces)

    def shed(self) -> None:
        """Frees the memory of a request that is over; it still answers opens with a cancel."""
        for stream_id in self.streams:
            self._forget(stream_id)
        self.streams, self.workers, self.early, self.pieces = {}, [], [], []
        self.holder = self.newest = None

    def enqueued(self, root: bytes) -> None:
        """Records that the request was sealed and enqueued again."""
        self.roots.append(root)
        self.broken_end = False  # until another broken end comes

    @property
    def author(self) -> Stream | None:
        """Stream that made the pieces so far; before the first piece, the newest stream."""
        return self.holder or self.newest

    @property
    def gap(self) -> bool:
        """True if frames of a live stream are missing before a frame that came."""
        return any(stream.gap for stream in self.streams.values())

    @property
    def held(self) -> bool:
        """True if a worker opened the request and the highest stream did not end in `moved`."""
        return self.highest is not None and self.highest != self.moved

    def feed(self, frame: bytes, reply_to: str | None = None) -> list[Event]:
        """Processes one message of the reply queue. A frame that does not verify has no result.

        If a `replay_key` raises, the next call returns the events before it.
        """
        try:
            self._feed(frame, reply_to)
        except Refused:
            pass  # the frame is dropped
        events, self.events = self.events, []
        return events

    def _feed(self, frame: bytes, reply_to: str | None) -> None:
        hint = error_hint(frame)
        if hint is not None:
            if hint[0] == self.request_id:
                self._tell("hint", hint[1])
            return
        head = reply_head(frame)
        if head.request_id != self.request_id:
            raise Refused("it answers another request")
        stream = self.streams.get(head.stream_id)
        if self.over:
            self.early.clear()
        if head.stream_id in self.gone:
            return
        if head.kind == OPEN and stream is None:
            self._open(head, frame, reply_to)
        elif stream is not None and not self.over:
            self._keep(stream, head, frame)
        elif not self.over:
            self._wait(frame)

    def _tell(self, kind: str, value: Any = None) -> None:
        self.events.append(Event(kind, value))

    def _wait(self, frame: bytes) -> None:
        """Keeps a frame until its open comes: after a reconnect, an open may come after its frames.

        Without the open the frame cannot be verified. So only few frames are kept, and all frames
        that claim one sequence number are kept, so that a forged one replaces no other.
        """
        if frame in self.early or len(frame) > MAX_EARLY_BYTES:
            return
        self.early.append(frame)
        while len(self.early) > MAX_EARLY or sum(map(len, self.early)) > MAX_EARLY_BYTES:
            del self.early[0]

    def _catch_up(self, stream_id: bytes, stream: Stream) -> None:
        """Reads the early frames of this stream."""
        early = [(reply_head(frame), frame) for frame in self.early]
        self.early = [frame for head, frame in early if head.stream_id != stream_id]
        for head, frame in early:
            if head.stream_id == stream_id and not self.over:
                try:
                    self._keep(stream, head, frame)
                except Refused:
                    pass  # only this frame is dropped

    def _keep(self, stream: Stream, head: ReplyHead, frame: bytes) -> None:
        """Rule C2: reads the frames that are next in sequence."""
        if not stream.keep(head, frame):
            return
        self.heard += 1
        if head.seq > stream.next and head.kind in (FINAL_OK, FINAL_ERROR):
            self._note_broken_end(stream)
        while not self.over and (next_one := stream.turn()):
            try:
                self._read(stream, *next_one)
            except Refused:  # it verifies and is invalid: another worker may do better
                stream.distrust()

    def _read(self, stream: Stream, kind: int, content_type: int, content: bytes) -> None:
        if kind == DATA:
            stream.chunks += 1
            if content_type != PIECES:
                raise Refused("its content type does not fit its kind")
            first, pieces = read_pieces(content)
            if stream.state == LIVE:
                self._extend(stream, first, pieces)
        elif kind == MOVED:
            if stream.state == LIVE:
                self._tell("moved")
            self.moved = stream.rank if self.moved is None else max(self.moved, stream.rank)
            stream.end()
        elif kind in (FINAL_OK, FINAL_ERROR):
            self._conclude(stream, kind, content_type, content)

    def _conclude(self, stream: Stream, kind: int, content_type: int, content: bytes) -> None:
        end = None
        try:
            if stream.state == LIVE and kind == FINAL_ERROR:
                end = read_failure(content_type, content)
            elif stream.state == LIVE:
                end = self._finish(stream, read_summary(content_type, content))
        except Refused:
            pass
        if end is None:
            self._note_broken_end(stream)
        stream.end()
        if end is not None:
            self._end("done" if kind == FINAL_OK else "failed", end)

    def _note_broken_end(self, stream: Stream) -> None:
        """Records an end that this client cannot use, although the worker considers the job done.

        The end of a stale stream counts only if the stream is the highest: its worker held the
        request."""
        self.broken_end |= stream.state == LIVE or stream.rank == self.highest

    def cancels(self) -> list[Event]:
        """Returns a `cancel` for every stream that has not ended and every unopened copy."""
        live = [s for s in self.workers if s.state != ENDED]
        letters = [Letter(CANCEL, b"", s.reply_to, s.root) for s in live]
        letters += [Letter(CANCEL, b"", None, r) for r in self.roots if r not in self.answered]
        return [Event("control", letter) for letter in dict.fromkeys(letters)]

    def _enqueue_of(self, head: ReplyHead, frame: bytes, attempt: int) -> tuple[int, FrameKey]:
        """Returns the enqueue that an open belongs to: only its root fits the commitment."""
        for enqueue, root in enumerate(self.roots):
            keys, stream_id = reply_keys(root, frame[48:80], self.request_id, attempt)
            try:
                keys.check(frame[84:116])
            except Refused:
                continue
            if head.seq != 0 or stream_id != head.stream_id:
                raise Refused("its stream id is not its key's")
            return enqueue, keys
        raise Refused("it was sealed with another key")

    def _open(self, head: ReplyHead, frame: bytes, reply_to: str | None) -> None:
        """Rule C1."""
        start(frame, b"NSBR", 116)
        attempt = struct.unpack_from(">I", frame, 80)[0]
        enqueue, keys = self._enqueue_of(head, frame, attempt)
        root = self.roots[enqueue]
        content = strip(keys.open(0, 116, frame))
        if content[0] != PLAIN:
            raise Refused("its content type does not fit its kind")
        if self.over:
            self._forget(head.stream_id)
            self._tell("control", Letter(CANCEL, b"", reply_to, root))
            return
        body = read_open(*content)
        self.heard += 1
        self.answered.add(root)
        rank = (enqueue, attempt, body["opened_at_ms"], head.stream_id)
        stream = Stream(keys, rank, root, reply_to, body.get("fingerprint"), body.get("revision"))
        self.newest = stream
        self.highest = rank if self.highest is None else max(self.highest, rank)
        self.workers = [s for s in self.workers if s.state != ENDED][1 - MAX_WORKERS :] + [stream]
        self._make_room()
        self.streams[head.stream_id] = stream
        self._tell("opened", {"attempt": attempt, **body})
        if attempt > 1:  # its worker waits for it, also without pieces
            made_by = self.holder.fingerprint if self.holder else None
            resume = write_resume(made_by, self.pieces)
            self._tell("control", Letter(RESUME, resume, reply_to, root))
        self._catch_up(head.stream_id, stream)

    def _make_room(self) -> None:
        """Evicts the lowest stream if there are too many: a killed worker's stream never ends."""
        if len(self.streams) < MAX_STREAMS:
            return
        least = min(self.streams.items(), key=lambda item: (item[1].state == LIVE, item[1].rank))[0]
        del self.streams[least]
        self._forget(least)

    def _forget(self, stream_id: bytes) -> None:
        """Remembers the id of a stream, so that nothing opens the stream again."""
        self.gone[stream_id] = None
        if len(self.gone) > MAX_GONE:
            del self.gone[next(iter(self.gone))]

    def _extend(self, stream: Stream, first: int, pieces: list[bytes]) -> None:
        """Rules C3 and C4."""
        in_step = stream.position in (None, first)
        if not in_step or first > len(self.pieces) or self._foreign(stream, first):
            stream.distrust()
            return
        known = self.pieces[first : first + len(pieces)]
        equal = [self.replay_key(old) == self.replay_key(new) for old, new in zip(known, pieces)]
        if stream.position is None:
            stream.size = self._bytes(first)
        stream.position = first + len(pieces)
        stream.size += sum(map(len, pieces))
        if all(equal):
            self._append(stream, pieces[len(known) :])
        else:
            same = equal.index(False)
            self._disagree(stream, first + same, pieces[same:])

    def _foreign(self, stream: Stream, first: int) -> bool:
        """Returns True if the stream continues pieces of a worker with another fingerprint."""
        if self.holder is None or stream.position is not None or first == 0:
            return False
        return self.holder.fingerprint != stream.fingerprint

    def _append(self, stream: Stream, fresh: list[bytes]) -> None:
        size = sum(len(piece) + 4 for piece in fresh)
        if self.size + size > MAX_REPLY_BYTES:
            message = f"the reply has more than {MAX_REPLY_BYTES} bytes"
            self._end("failed", {"code": "reply-too-large", "message": message})
        elif fresh:
            self.pieces += fresh
            self.size += size
            self.holder = stream
            self._tell("pieces", fresh)

    def _disagree(self, stream: Stream, kept: int, pieces: list[bytes]) -> None:
        """Rule C4: the higher rank wins; the event says how many pieces stand."""
        higher = [s for s in self.streams.values() if s.rank > stream.rank and s.state == LIVE]
        outranked = self.holder is not None and stream.rank <= self.holder.rank
        if outranked or any(s.position is not None and s.position > kept for s in higher):
            stream.distrust()
            return
        for other in self.streams.values():
            if other.rank < stream.rank:
                other.distrust()
        self.size -= sum(len(piece) + 4 for piece in self.pieces[kept:])
        del self.pieces[kept:]
        self.holder = stream
        self._tell("restarted", kept)
        self._append(stream, pieces)

    def _finish(self, stream: Stream, summary: dict[str, Any]) -> dict[str, Any] | None:
        """Rule C5. A reply that ends before the known pieces is a disagreement (C4)."""
        chunks, claimed, size = (summary[name] for name in ("chunks", "pieces", "bytes"))
        position, length, foreign = stream.position, stream.size, False
        if position is None:  # its worker added nothing to the resumed pieces
            position, length = claimed, self._bytes(claimed)
            foreign = self._foreign(stream, claimed)
        agree = (stream.chunks, position, length) == (chunks, claimed, size)
        if foreign or not agree or position > len(self.pieces):
            return None  # not an end: frames are missing
        if position < len(self.pieces):
            self._disagree(stream, position, [])
        return summary if stream.state == LIVE else None

    def _bytes(self, count: int) -> int:
        return sum(map(len, self.pieces[:count]))

    def _end(self, kind: str, body: dict[str, Any]) -> None:
        self.over = True
        self.early.clear()
        self._tell(kind, body)
        self.events += self.cancels()
