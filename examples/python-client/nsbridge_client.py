"""A client of the nsbridge protocol, version 1, in one file.

It seals a request, publishes it to a model's queue, opens the streamed reply and merges the
attempts of several workers. `docs/protocol.md` specifies everything that it does.

    python nsbridge_client.py --url amqp://guest:guest@localhost:5672/%2f --keyring keys.json \
        --model tale-7m --tenant demo "Once a bear"

Parts 1 to 6 are pure: no network, no clock. Part 7 talks to RabbitMQ, part 8 is the command.
Key services and object storage are left out.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import secrets
import signal
import stat
import struct
import sys
import time
import urllib.parse
import uuid
from dataclasses import dataclass, field
from typing import Callable, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

# --- 1. Constants of the protocol ---------------------------------------------------------------

CONTENT_TYPE = "application/vnd.nsbridge.v1"
VERSION, SUITE = 1, 1
KEYRING_PROVIDER, KMS_PROVIDER = range(2)
PLAIN, PIECES = 1, 2  # content types
OPEN, DATA, HEARTBEAT, FINAL_OK, FINAL_ERROR, MOVED = range(6)  # kinds of NSBR
CANCEL, RESUME = range(2)  # kinds of NSBC
MAX_REQUEST_BYTES = 8 << 20
MAX_WRAPPED_BYTES = 4 << 10
MAX_AHEAD = 256  # frames of one stream kept until the frames before them come
MAX_EARLY, MAX_EARLY_BYTES = 256, 1 << 20  # frames of one request kept until their open comes
MAX_STREAMS = 4  # streams of one request followed at once
MAX_GONE = 64  # evicted streams of one request whose ids are remembered
MAX_WORKERS = 8  # workers of one request that get a cancel at its end
MAX_HINTS = 16  # hints of one request that are shown
PREFETCH = 512  # unacked reply frames that the broker may send
MAX_SECONDS = 25 * 60
ALLOW_PLAINTEXT = "allow_plaintext=true"  # in a URL: allows a remote broker without TLS
SILENCE_S = 15  # seconds without a frame after which the state is `waiting`
QUIET_S = 6  # seconds after a loss until a new copy; live workers send a frame every 5 s
SILENT_S = 90  # the same, once, for an opened request without any sign of a loss
MAX_AGAIN = 3
PAUSE_S, LONGEST_PAUSE_S = 0.2, 5  # pause before a refused copy is published again
CODES = (
    "bad-input model-failed cancelled deadline expired clock-skew malformed unsupported-version "
    "oversized unknown-key wrong-key tampered wrong-model key-scope poison reply-too-large "
    "key-denied internal wrong-revision"
).split()  # the code with number n is CODES[n - 1]
USAGE = "input_tokens output_tokens cached_tokens drafted_tokens accepted_tokens".split()
REASONS = ("stop", "length", "stop_text")  # finish reasons

REPLY_EXCHANGE, CONTROL_EXCHANGE = "nsbridge.reply", "nsbridge.control"
REPLY_QUEUE_ARGUMENTS = {
    "x-queue-type": "classic",
    "x-expires": 15_000,
    "x-max-length-bytes": 64 << 20,
    "x-overflow": "reject-publish",
}


class Refused(Exception):
    """Frame that does not verify or has invalid content. The frame is dropped."""


class Failed(Exception):
    """Error that ends the command with one sentence."""


# --- 2. Key schedule: HKDF-SHA-512 (RFC 5869) and AES-256-GCM ------------------------------------


def extract(salt: bytes, key: bytes) -> bytes:
    return hmac.new(salt, key, hashlib.sha512).digest()


def expand(prk: bytes, info: bytes, length: int) -> bytes:
    out, block = b"", b""
    for counter in range(1, -(-length // 64) + 1):
        block = hmac.new(prk, block + info + bytes([counter]), hashlib.sha512).digest()
        out += block
    return out[:length]


class FrameKey:
    """Cipher of one frame or one stream, with its commitment."""

    def __init__(self, material: bytes):
        self.key, self.base, self.commitment = material[:32], material[32:44], material[44:76]
        self._gcm = AESGCM(self.key)

    def check(self, commitment: bytes) -> None:
        """Compares the commitment before decryption; separates a wrong key from changed bytes."""
        if not hmac.compare_digest(self.commitment, commitment):
            raise Refused("it was sealed with another key")

    def nonce(self, seq: int) -> bytes:
        return bytes(a ^ b for a, b in zip(self.base, bytes(4) + struct.pack(">Q", seq)))

    def seal(self, seq: int, header: bytes, text: bytes) -> bytes:
        return header + self._gcm.encrypt(self.nonce(seq), text, header)

    def open(self, seq: int, header_length: int, frame: bytes) -> bytes:
        try:
            header, sealed = frame[:header_length], frame[header_length:]
            return self._gcm.decrypt(self.nonce(seq), sealed, header)
        except (InvalidTag, ValueError) as error:
            raise Refused("it was changed on the way") from error


def request_keys(key: bytes, salt: bytes, header: bytes) -> tuple[FrameKey, bytes]:
    """Derives the key of a request and its reply root."""
    digest = hashlib.sha512(header).digest()
    prk = extract(salt, key)
    frame_key = FrameKey(expand(prk, b"nsbridge/1 request\0" + digest, 76))
    return frame_key, expand(prk, b"nsbridge/1 reply-root\0" + digest, 32)


def reply_keys(root: bytes, salt: bytes, request_id: bytes, attempt: int) -> tuple[FrameKey, bytes]:
    """Derives the key of one reply stream and the stream id."""
    info = b"nsbridge/1 reply\0" + request_id + struct.pack(">I", attempt)
    material = expand(extract(salt, root), info, 92)
    return FrameKey(material[:76]), material[76:]


def control_key(root: bytes, salt: bytes, request_id: bytes, kind: int) -> FrameKey:
    info = b"nsbridge/1 control\0" + request_id + bytes([kind])
    return FrameKey(expand(extract(salt, root), info, 76))


def tenant_key(master: bytes, tenant: str, model: str) -> bytes:
    """Derives the key that a tenant holds for a model in place of the master key."""
    t, m = tenant.encode(), model.encode()
    lengths = struct.pack(">I", len(t)), struct.pack(">I", len(m))
    info = b"nsbridge/1 tenant\0" + lengths[0] + t + lengths[1] + m
    return expand(extract(bytes(32), master), info, 32)


def check_value(key: bytes) -> str:
    """Returns sixteen public hex digits that reveal a key with a copying error."""
    return expand(extract(bytes(32), key), b"nsbridge/1 check value\0", 8).hex()


# --- 3. Frames -----------------------------------------------------------------------------------


def pad(content_type: int, content: bytes) -> bytes:
    text = bytes([content_type]) + struct.pack(">I", len(content)) + content
    return text + bytes(-len(text) % 64)


def strip(text: bytes) -> tuple[int, bytes]:
    if len(text) < 5 or text[0] not in (PLAIN, PIECES):
        raise Refused("its content type is not known")
    length = struct.unpack_from(">I", text, 1)[0]
    if length > len(text) - 5 or len(text) % 64 or any(text[5 + length :]):
        raise Refused("its padding does not fit its content")
    return text[0], text[5 : 5 + length]


def start(frame: bytes, magic: bytes, length: int) -> None:
    """Checks magic, version, suite and flags, and that the fixed header is complete."""
    if len(frame) < length or frame[:4] != magic:
        raise Refused("it is no frame of this protocol")
    if frame[4] != VERSION or frame[5] != SUITE or frame[7] != 0:
        raise Refused("its version, suite or flags are not known")


@dataclass(frozen=True)
class RequestHead:
    id: bytes
    created_at_ms: int
    expires_at_ms: int
    model: str
    tenant: str
    key_id: str


def seal_request(
    key: bytes, salt: bytes, head: RequestHead, content: bytes, wrapped: bytes = b""
) -> tuple[bytes, bytes]:
    """Returns the sealed frame and its reply root. The salt must be new for each sealing.

    `wrapped` is the wrapped form of a data key of AWS KMS; the head's key id is then the KMS key's.
    """
    if len(content) > MAX_REQUEST_BYTES:
        raise Failed(f"the request has {len(content)} bytes, at most {MAX_REQUEST_BYTES} are taken")
    provider = KMS_PROVIDER if wrapped else KEYRING_PROVIDER
    header = b"NSBQ" + bytes([VERSION, SUITE, provider, 0]) + head.id + salt
    header += struct.pack(">QQ", head.created_at_ms, head.expires_at_ms)
    for text in (head.model, head.tenant, head.key_id):
        raw = text.encode()
        if not 1 <= len(raw) <= 255:
            raise Failed("model, tenant and key id have 1 to 255 bytes each")
        header += bytes([len(raw)]) + raw
    if len(wrapped) > MAX_WRAPPED_BYTES:
        raise Failed(f"a wrapped key has at most {MAX_WRAPPED_BYTES} bytes")
    header += struct.pack(">H", len(wrapped)) + wrapped
    keys, root = request_keys(key, salt, header)
    return keys.seal(0, header + keys.commitment, pad(PLAIN, content)), root


def seal_control(root: bytes, salt: bytes, request_id: bytes, kind: int, content: bytes) -> bytes:
    keys = control_key(root, salt, request_id, kind)
    header = b"NSBC" + bytes([VERSION, SUITE, kind, 0]) + request_id + salt + keys.commitment
    return keys.seal(0, header, pad(PLAIN, content))


class ReplyHead(NamedTuple):
    kind: int
    request_id: bytes
    stream_id: bytes
    seq: int


def reply_head(frame: bytes) -> ReplyHead:
    start(frame, b"NSBR", 48)
    if frame[6] > MOVED:
        raise Refused("its kind is not known")
    return ReplyHead(frame[6], frame[8:24], frame[24:40], struct.unpack_from(">Q", frame, 40)[0])


def error_hint(frame: bytes) -> tuple[bytes, str] | None:
    """Returns request id and code of an NSBE. Anyone can forge it: show it, never act on it."""
    if len(frame) != 24 or frame[:6] != b"NSBE\x01\x00":
        return None
    number = struct.unpack_from(">H", frame, 6)[0]
    return frame[8:], CODES[number - 1] if 1 <= number <= len(CODES) else "internal"


def write_pieces(first: int, pieces: list[bytes]) -> bytes:
    return struct.pack(">I", first) + b"".join(struct.pack(">I", len(p)) + p for p in pieces)


def read_pieces(content: bytes) -> tuple[int, list[bytes]]:
    if len(content) < 4:
        raise Refused("it is no piece list")
    first, at, pieces = struct.unpack_from(">I", content)[0], 4, []
    while at < len(content):
        if at + 4 > len(content):
            raise Refused("a piece list ends in the middle of a length")
        end = at + 4 + struct.unpack_from(">I", content, at)[0]
        if end > len(content):
            raise Refused("a piece list ends in the middle of a piece")
        pieces.append(content[at + 4 : end])
        at = end
    return first, pieces


def write_resume(fingerprint: str | None, pieces: list[bytes]) -> bytes:
    header = json.dumps({"fingerprint": fingerprint, "n": len(pieces)}, separators=(",", ":"))
    return struct.pack(">I", len(header)) + header.encode() + write_pieces(0, pieces)


def read_json(content_type: int, content: bytes) -> dict:
    """Parses a JSON object; unknown fields are ignored."""
    try:
        value = json.loads(content) if content_type == PLAIN else None
    except (ValueError, RecursionError) as error:
        raise Refused("its content is not JSON") from error
    if not isinstance(value, dict):
        raise Refused("its content is not an object")
    return value


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def is_hex(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-fA-F]{32}", value) is not None


def is_revision(value: object) -> bool:
    pattern = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def read_open(content_type: int, content: bytes) -> dict:
    body = read_json(content_type, content)
    fits = is_count(body.get("opened_at_ms")) and isinstance(body.get("worker"), str)
    optional = (("fingerprint", is_hex), ("revision", is_revision))
    if not fits or not all(body.get(name) is None or test(body[name]) for name, test in optional):
        raise Refused("a field of the open is missing, or is not what it should be")
    return body


def read_summary(content_type: int, content: bytes) -> dict:
    body = {"pieces": 0, "finish_reason": "stop", "usage": {}, **read_json(content_type, content)}
    fits = all(is_count(body.get(name)) for name in ("chunks", "bytes", "pieces"))
    fits = fits and isinstance(body["finish_reason"], str) and isinstance(body["usage"], dict)
    if not fits or not all(is_count(body["usage"].get(name, 0)) for name in USAGE):
        raise Refused("a field of the end is missing, or is not what it should be")
    return body


def read_failure(content_type: int, content: bytes) -> dict:
    body = {"chunks": 0, **read_json(content_type, content)}
    fits = isinstance(body.get("code"), str) and isinstance(body.get("message"), str)
    if not fits or not is_count(body["chunks"]):
        raise Refused("a field of the end is missing, or is not what it should be")
    return body


# --- 4. Merging attempts: rules C1 to C5 ---------------------------------------------------------


def text_replay_key(piece: bytes) -> bytes:
    """Returns the replay key of a text piece: token id and text, without log-probabilities."""
    try:
        value = json.loads(piece)
        return struct.pack(">I", value["token"]) + value["text"].encode()
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, struct.error):
        return piece


class Event(NamedTuple):
    """Result of a frame: opened, pieces, restarted, moved, done, failed, hint or control.

    The value of a `control` is a `Letter`. A silence leads to `waiting`, and to `enqueue` with
    a `Copy`.
    """

    kind: str
    value: object = None


class Letter(NamedTuple):
    """Control frame to seal and send."""

    kind: int
    content: bytes
    key: str | None  # the worker's control queue; None: all workers of the model
    root: bytes  # reply root of the copy; workers of other copies cannot open it


class Copy(NamedTuple):
    """Sealed request to enqueue."""

    frame: bytes
    again: int  # number of copies enqueued before it


LIVE, STALE, ENDED = "live", "stale", "ended"


@dataclass(eq=False)
class Stream:
    """Reply of one attempt, as far as it was read."""

    keys: FrameKey
    rank: tuple  # enqueue, attempt number, opened_at_ms, stream id
    root: bytes
    reply_to: str | None
    fingerprint: str | None
    next: int = 1
    position: int | None = None  # index of the next piece; None before the first piece
    chunks: int = 0
    bytes: int = 0  # size of the pieces before `position` in this stream
    state: str = LIVE  # of a stale stream only the end matters
    ahead: dict[int, tuple] = field(default_factory=dict)  # kind and content by sequence number

    def keep(self, head: ReplyHead, frame: bytes) -> bool:
        """Rule C2: keeps a frame that verifies. Returns False for a repeated frame.

        The frame is decrypted at once, because a forged frame must not take the place of the true
        one. There is one more place for the last frame: it shows that missing frames will not come.
        """
        if self.state == ENDED or head.seq < self.next or head.seq in self.ahead:
            return False
        if head.kind == OPEN:
            raise Refused("a stream opens once")
        content = strip(self.keys.open(head.seq, 48, frame))
        last = head.kind in (FINAL_OK, FINAL_ERROR, MOVED)
        if head.seq > self.next and len(self.ahead) >= MAX_AHEAD + last:
            return False
        self.ahead[head.seq] = (head.kind, *content)
        return True

    def turn(self) -> tuple | None:
        """Returns the next frame in sequence as (kind, content type, content), if it has come."""
        frame = self.ahead.pop(self.next, None)
        self.next += frame is not None
        return frame

    def distrust(self) -> None:
        """Makes a live stream stale: its pieces do not count any more."""
        if self.state == LIVE:
            self.state = STALE

    def end(self) -> None:
        self.state = ENDED
        self.ahead.clear()

    @property
    def gap(self) -> bool:
        """True if frames are missing before a frame that came; they may still come."""
        return self.state == LIVE and bool(self.ahead)


@dataclass
class Merge:
    """Reply of one request, merged from all the streams that answer it."""

    request_id: bytes
    roots: list[bytes]  # reply roots, in the order of enqueue
    replay_key: Callable[[bytes], bytes] = text_replay_key
    pieces: list[bytes] = field(default_factory=list)
    streams: dict[bytes, Stream] = field(default_factory=dict)  # at most four, ended ones included
    gone: dict[bytes, None] = field(default_factory=dict)  # ids of evicted streams
    workers: list[Stream] = field(default_factory=list)  # the newest streams that have not ended
    early: list[bytes] = field(default_factory=list)  # frames whose stream has not opened yet
    events: list[Event] = field(default_factory=list)  # events that were not returned yet
    over: bool = False  # done, failed or canceled: later opens get a `cancel`
    holder: Stream | None = None  # the stream that last extended the pieces
    answered: set[bytes] = field(default_factory=set)  # roots under which a stream was opened
    heard: int = 0  # frames that verified, each counted once
    highest: tuple | None = None  # the rank of the highest stream that ever opened
    moved: tuple | None = None  # the rank of the highest stream that ended in `moved`
    broken_end: bool = False  # an end came that does not fit the frames before it

    def enqueued(self, root: bytes) -> None:
        """Records that the request was sealed and enqueued again."""
        self.roots.append(root)
        self.broken_end = False  # until another broken end comes

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

    def _tell(self, kind: str, value: object = None) -> None:
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
            self.moved = max(filter(None, (self.moved, stream.rank)))
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
        stream = Stream(keys, rank, root, reply_to, body.get("fingerprint"))
        self.highest = max(filter(None, (self.highest, rank)))
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
            stream.bytes = self._bytes(first)
        stream.position = first + len(pieces)
        stream.bytes += sum(map(len, pieces))
        if all(equal):
            self._append(stream, pieces[len(known) :])
        else:
            same = equal.index(False)
            self._disagree(stream, first + same, pieces[same:])

    def _foreign(self, stream: Stream, first: int) -> bool:
        """Returns True if the stream continues pieces of a worker with another fingerprint."""
        begins = stream.position is None and first > 0 and self.holder is not None
        return begins and self.holder.fingerprint != stream.fingerprint

    def _append(self, stream: Stream, fresh: list[bytes]) -> None:
        if fresh:
            self.pieces += fresh
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
        del self.pieces[kept:]
        self.holder = stream
        self._tell("restarted", kept)
        self._append(stream, pieces)

    def _finish(self, stream: Stream, summary: dict) -> dict | None:
        """Rule C5. A reply that ends before the known pieces is a disagreement (C4)."""
        chunks, claimed, size = (summary[name] for name in ("chunks", "pieces", "bytes"))
        position, length, foreign = stream.position, stream.bytes, False
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

    def _end(self, kind: str, body: dict) -> None:
        self.over = True
        self.early.clear()
        self._tell(kind, body)
        self.events += self.cancels()


# --- 5. Keyring ----------------------------------------------------------------------------------


def read_keyring(text: str) -> list[dict]:
    """Returns the entries of a keyring's JSON. No error message quotes the text."""
    try:
        ring = json.loads(text)
        entries = ring["keys"]
        fits = ring["schema"] == 1 and all(isinstance(e["id"], str) for e in entries)
        primaries = [e for e in entries if e["state"] == "primary"]
    except (ValueError, KeyError, TypeError):
        fits, primaries = False, []
    if not fits or len(primaries) != 1:
        raise Failed("the keyring is not schema 1 with exactly one primary key")
    for entry in entries:
        try:
            entry["key"] = base64.b64decode(entry["key"], validate=True)
        except (ValueError, KeyError, TypeError):
            entry["key"] = b""
        if len(entry["key"]) != 32:
            raise Failed(f"the key `{entry['id']}` of the keyring is not 32 bytes in base64")
        if entry.get("check", check_value(entry["key"])) != check_value(entry["key"]):
            raise Failed(f"the key `{entry['id']}` does not match its check value: pasted wrong?")
    return entries


def load_keyring(path: str) -> list[dict]:
    """Reads a keyring file; refuses one that other users of this machine can read."""
    try:
        with open(path, encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise Failed(f"the keyring {path} can be read by others: chmod 600 it")
            if status.st_uid != os.geteuid():
                raise Failed(f"the keyring {path} belongs to another user")
            return read_keyring(file.read())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise Failed(f"cannot use the keyring {path}: {reason}") from error


def sealing_key(entries: list[dict], model: str, tenant: str) -> tuple[str, bytes]:
    """Returns the id of the primary key, and the key for this model and tenant."""
    entry = next(e for e in entries if e["state"] == "primary")
    for allowed, wanted in ((entry.get("models"), model), (entry.get("tenants"), tenant)):
        if allowed is not None and wanted not in allowed:
            raise Failed(f"the key `{entry['id']}` does not serve `{wanted}`")
    if entry.get("derived"):
        return entry["id"], tenant_key(entry["key"], tenant, model)
    return entry["id"], entry["key"]


# --- 6. Waiting and new copies: rule C6 ----------------------------------------------------------


class Inquiry:
    """One request from its first sealing to its end; the caller has the clock and the network."""

    def __init__(self, key: bytes, head: RequestHead, content: bytes, now: float):
        self.key, self.head, self.content = key, head, content
        self.merge = Merge(head.id, [])
        self.told = self.heard = now  # last report of a silence; last new frame
        self.asked = self.listening = now  # last enqueue; last subscription
        self.lost: float | None = None  # time of the loss, if nothing was heard since

    def seal(self) -> Copy:
        """Seals the request again, under a new salt and so with a reply root of its own."""
        frame, root = seal_request(self.key, secrets.token_bytes(32), self.head, self.content)
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
        if now - self.told >= SILENCE_S:
            self.told = now
            events.append(Event("waiting", now - self.heard))
        copies = len(self.merge.roots)
        missing = self.lost is not None or self.merge.broken_end
        if missing:
            patience = QUIET_S
        elif self.merge.held and copies == 1:  # the broker may hold back a copy
            patience = SILENT_S
        else:  # the request may wait for its turn
            return events
        moments = (self.heard, self.listening, self.lost, self.asked)
        since = max(moment for moment in moments if moment is not None)
        if copies <= MAX_AGAIN and now - since >= patience << (copies - 1):
            self.asked = now
            if missing:
                self.lost = now  # another copy follows only if this one brings nothing
            events.append(Event("enqueue", self.seal()))
        return events


# --- 7. RabbitMQ ---------------------------------------------------------------------------------


def uuid7(now_ms: int) -> bytes:
    """Returns a UUIDv7 (RFC 9562, 5.7): 48 bits of time, then random bits with the version."""
    value = now_ms << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    return value.to_bytes(16, "big")


def private(url: str) -> str:
    """Returns the URL for pika. A remote broker without TLS needs `?allow_plaintext=true`."""
    parts = urllib.parse.urlsplit(url)
    words = parts.query.split("&")
    query = "&".join(word for word in words if word != ALLOW_PLAINTEXT)
    host = parts.hostname or "localhost"
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost"
    if parts.scheme == "amqp" and not here and ALLOW_PLAINTEXT not in words:
        raise Failed(f"the broker at {host} would be reached without TLS, with its password readable "
                     f"on the network: use amqps://, or add ?{ALLOW_PLAINTEXT} to the URL")
    return parts._replace(query=query).geturl()


class Link:
    """One connection with this client's reply queue; reconnects after a loss."""

    def __init__(self, url: str):
        import pika  # imported here, so that tests of the pure parts do not need it

        self.pika = pika
        logging.getLogger("pika").addHandler(logging.NullHandler())
        logging.getLogger("pika").propagate = False  # it would log each error again
        self.queue = f"nsbridge.reply.{secrets.randbits(128):032x}"
        try:
            self.parameters = pika.URLParameters(private(url))
        except Failed:
            raise
        except Exception as error:  # pika raises many types, and may quote the password
            raise Failed("the URL is not amqp://user:password@host:5672/%2f") from error
        # Well below the 15 s after which an unused reply queue expires.
        self.parameters.socket_timeout = self.parameters.stack_timeout = 5
        self.parameters.blocked_connection_timeout = 10
        self.take: Callable = lambda *_: None
        self.trouble: Failed | None = None  # reason for a missing connection
        self.lost = False  # the reply queue was gone, with its messages
        self.connect()
        self.lost = False  # the queue is new

    def connect(self) -> None:
        try:
            self.connection = self.pika.BlockingConnection(self.parameters)
            self._declare()
        except (self.pika.exceptions.AMQPError, OSError) as error:
            where = f"{self.parameters.host}:{self.parameters.port}"
            reason = str(error) or "nobody answers"
            raise Failed(f"cannot use the broker at {where}: {reason}") from error

    def _declare(self) -> None:
        for exchange in (REPLY_EXCHANGE, CONTROL_EXCHANGE):
            try:  # passive: needs no configure permission if they exist
                self.connection.channel().exchange_declare(exchange, "direct", passive=True)
            except self.pika.exceptions.ChannelClosedByBroker:
                self.connection.channel().exchange_declare(exchange, "direct", durable=True)
        try:  # first: a queue with a consumer does not expire
            self._subscribe()
        except self.pika.exceptions.ChannelClosedByBroker:
            self.lost = True  # recorded before it is declared again: what follows may fail
            self._declare_queue(self.connection.channel())
            self._subscribe()
        else:  # an earlier attempt may have failed before the bind
            self._declare_queue(self.channel)

    def _declare_queue(self, channel) -> None:
        channel.queue_declare(self.queue, durable=True, arguments=REPLY_QUEUE_ARGUMENTS)
        channel.queue_bind(self.queue, REPLY_EXCHANGE, routing_key=self.queue)

    def _subscribe(self) -> None:
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.basic_qos(prefetch_count=PREFETCH)
        # The broker cancels the consumer if the queue is deleted.
        self.channel.add_on_cancel_callback(lambda _: self._give_up("the reply queue was deleted"))
        self.channel.basic_consume(self.queue, self._on_message)

    def _on_message(self, channel, method, properties, body) -> None:
        self.take(body, properties.reply_to)
        channel.basic_ack(method.delivery_tag)  # after use: an unacked frame comes again

    def _give_up(self, reason: object) -> None:
        self.trouble = Failed(f"lost the broker: {reason}")

    def publish_request(self, head: RequestHead, copy: Copy, bulk: bool = False) -> bool:
        """Returns False if the connection is gone; publish the same bytes again then."""
        text = str(uuid.UUID(bytes=head.id))
        headers = {"nsb-model": head.model, "nsb-kid": head.key_id}
        if copy.again:  # then its worker waits for the pieces that are here
            headers["nsb-epoch"] = copy.again
        properties = self.pika.BasicProperties(
            message_id=text,
            correlation_id=text,
            reply_to=self.queue,
            delivery_mode=2,
            expiration=str(max(1, head.expires_at_ms - int(time.time() * 1000))),
            content_type=CONTENT_TYPE,
            headers=headers,
        )
        queue = f"nsbridge.{head.model}.bulk" if bulk else f"nsbridge.{head.model}"
        try:
            return self._publish("", queue, copy.frame, properties, mandatory=True)
        except self.pika.exceptions.UnroutableError as error:
            raise Failed(f"there is no queue {queue}: no worker has served this model yet") from error
        except self.pika.exceptions.NackError as error:
            raise Failed(f"the queue {queue} is full, try again later") from error

    def publish_control(self, frame: bytes, request_id: bytes, key: str) -> bool:
        """Publishes without `mandatory` or a retry: a worker that misses one reads the next."""
        properties = self.pika.BasicProperties(
            correlation_id=str(uuid.UUID(bytes=request_id)),
            delivery_mode=1,
            content_type=CONTENT_TYPE,
        )
        try:
            return self._publish(CONTROL_EXCHANGE, key, frame, properties)
        except self.pika.exceptions.NackError:
            return True

    def _publish(self, exchange: str, key: str, frame: bytes, properties, **options) -> bool:
        """Waits for the publisher confirm. Returns False if the connection is gone."""
        errors = self.pika.exceptions
        try:
            self.channel.basic_publish(exchange, key, frame, properties, **options)
        except (errors.UnroutableError, errors.NackError):
            raise
        except errors.AMQPError as error:
            self._give_up(error)
            return False
        return True

    def wait(self, seconds: float) -> bool:
        """Processes incoming messages. Returns True if the reply queue and its messages were lost.

        After a lost connection, the same queue is consumed again, and its messages come back.
        """
        if not self.trouble:
            try:
                self.connection.process_data_events(time_limit=seconds)
            except self.pika.exceptions.AMQPError as error:
                self._give_up(error)
            return False
        self._drop()
        try:
            self.connect()
        except Failed as error:
            self.trouble = error
            time.sleep(seconds)
            return False
        self.trouble = None
        lost, self.lost = self.lost, False
        return lost

    def _drop(self) -> None:
        try:
            self.connection.close()
        except self.pika.exceptions.AMQPError:
            pass  # the connection is closed already

    def close(self) -> None:
        """Deletes the reply queue; it would expire after 15 s otherwise."""
        try:
            self.channel.queue_delete(self.queue)
        except self.pika.exceptions.AMQPError:
            pass
        self._drop()


# --- 8. The command ------------------------------------------------------------------------------


class Ask:
    """One running request: prints the reply, publishes copies and control frames."""

    def __init__(self, args: argparse.Namespace, clock: Callable[[], float] = time.monotonic):
        key_id, key = sealing_key(load_keyring(args.keyring), args.model, args.tenant)
        self.args, self.clock, self.notes = args, clock, sys.stderr
        self.interrupted = False
        self.finished: Event | None = None
        self.restarts, self.attempts = 0, 0
        self.hints: list[str] = []
        self.revision: str | None = None  # model revision of the worker that opened last
        now = int(time.time() * 1000)
        expires = now + int(args.timeout * 1000)
        self.head = RequestHead(uuid7(now), now, expires, args.model, args.tenant, key_id)
        asked = {"seed": args.seed, "input": text_input(args)}
        if args.revision is not None:
            asked["revision"] = args.revision
        content = json.dumps(asked).encode()
        self.inquiry = Inquiry(key, self.head, content, clock())
        self.merge = self.inquiry.merge
        # Unconfirmed copies, kept across connections.
        self.requests: list[Copy] = [self.inquiry.seal()]
        self.letters: list[Letter] = []
        self.pause, self.not_before = PAUSE_S, 0.0

    def run(self) -> int:
        signal.signal(signal.SIGINT, self._interrupt)
        deadline = self.clock() + self.args.timeout
        link = self.link = Link(self.args.url)
        link.take = self._take
        try:
            while not self.finished and not self.interrupted and self.clock() < deadline:
                self._publish()
                troubled, lost = link.trouble, link.wait(0.2)
                if troubled:
                    self.inquiry.listening = self.clock()
                if lost:
                    self.inquiry.queue_lost(self.clock())
                # Skipped without a connection and after the deadline.
                if not link.trouble and self.clock() < deadline:
                    self._on_events(self.inquiry.due(self.clock()))
            return self._end()
        except BrokenPipeError:
            self._cancel()
            self._publish()
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no error at exit
            raise Failed("the output was closed, the request is cancelled") from None
        finally:
            link.close()

    def _interrupt(self, *_) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def _publish(self) -> None:
        try:
            while self.requests and self.clock() >= self.not_before:
                if not self.link.publish_request(self.head, self.requests[0], self.args.bulk):
                    break
                del self.requests[0]
                self.pause = PAUSE_S
        except Failed:
            if len(self.merge.roots) == 1:
                raise
            # A new copy of a request is retried: a full queue does not end the request.
            self.not_before = self.clock() + self.pause
            self.pause = min(2 * self.pause, LONGEST_PAUSE_S)
        while self.letters and self._send(self.letters[0]):
            del self.letters[0]

    def _send(self, letter: Letter) -> bool:
        salt, key = secrets.token_bytes(32), letter.key or self.head.model
        frame = seal_control(letter.root, salt, self.head.id, letter.kind, letter.content)
        return self.link.publish_control(frame, self.head.id, key)

    def _take(self, frame: bytes, reply_to: str | None) -> None:
        self._on_events(self.inquiry.feed(frame, reply_to, self.clock()))

    def _on_events(self, events: list[Event]) -> None:
        for event in events:
            self._on_event(event)

    def _on_event(self, event: Event) -> None:
        if event.kind == "control":
            self.letters.append(event.value)
        elif event.kind == "pieces":
            self._show(event.value)
        elif event.kind == "restarted":
            self.restarts += 1
            print(f"\nrestarted: {event.value} pieces stand, here again:", file=self.notes)
            self._show(self.merge.pieces[: event.value])
        elif event.kind == "opened":
            self.attempts += 1
            self.revision = event.value.get("revision")
        elif event.kind == "waiting":
            print(f"waiting: nothing came for {event.value:.0f} seconds", file=self.notes)
        elif event.kind == "enqueue":
            self.requests.append(event.value)
            print("nobody is heard of any more: asking again", file=self.notes)
        elif event.kind == "hint":
            # Hints are not authenticated, so their number is limited.
            if event.value not in self.hints and len(self.hints) < MAX_HINTS:
                self.hints.append(event.value)
                print(f"unauthenticated hint from a worker: {event.value}", file=self.notes)
        elif event.kind in ("done", "failed"):
            self.finished = event

    def _show(self, pieces: list[bytes]) -> None:
        if not self.args.json:
            sys.stdout.write(piece_text(pieces))
            sys.stdout.flush()

    def _cancel(self) -> None:
        """Cancels every running stream, and at all workers of the model every unopened copy."""
        self.merge.over = True
        self.requests.clear()
        self._on_events(self.merge.cancels())

    def _end(self) -> int:
        if not self.finished:
            self._cancel()
        self._publish()
        if not self.finished:
            if self.interrupted:
                print("\ncancelled", file=self.notes)
                return 130
            why = f"; {self.link.trouble}" if self.link.trouble else ""
            why += f"; a worker hints: {self.hints[-1]} (not authenticated)" if self.hints else ""
            raise Failed(f"no complete reply within {self.args.timeout:g} seconds{why}")
        body = self.finished.value
        if self.finished.kind == "failed":
            code = body.get("code") if body.get("code") in CODES else "internal"
            raise Failed(f"{code}: {body.get('message', '')}")
        reason = body.get("finish_reason")
        report = {
            "id": str(uuid.UUID(bytes=self.head.id)),
            "seed": self.args.seed,
            "revision": self.revision,
            "pieces": len(self.merge.pieces),
            "finish_reason": reason if reason in REASONS else "stop",
            "usage": body.get("usage", {}),
            "enqueues": len(self.merge.roots),
            "attempts": self.attempts,
            "restarts": self.restarts,
        }
        if self.args.json:
            print(json.dumps({"text": piece_text(self.merge.pieces), **report}))
        else:
            print()
            print(" ".join(f"{k}={json.dumps(v)}" for k, v in report.items()), file=self.notes)
        return 0


def piece_text(pieces: list[bytes]) -> str:
    """Returns the text of pieces that are TextPiece or JSON strings; other pieces as they are."""
    texts = []
    for piece in pieces:
        try:
            value = json.loads(piece)
            text = value["text"] if isinstance(value, dict) else value
        except (ValueError, RecursionError, KeyError):
            text = None
        texts.append(text if isinstance(text, str) else piece.decode(errors="replace"))
    return "".join(texts).encode(errors="replace").decode()  # JSON can contain lone surrogates


def text_input(args: argparse.Namespace) -> dict:
    """Returns the TextInput; absent fields are left out, so that the handler's defaults apply."""
    if args.chat:
        asked: dict = {"messages": [{"role": "user", "content": args.prompt}]}
    else:
        asked = {"prompt": args.prompt}
    given = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    return {**asked, **{name: value for name, value in given.items() if value is not None}}


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ask a model behind nsbridge and stream the reply.")
    parser.add_argument("prompt", metavar="PROMPT")
    parser.add_argument("--url", required=True, help="amqp://user:password@host:5672/%%2f")
    parser.add_argument("--keyring", required=True, help="the keyring file, mode 600")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tenant", required=True)
    parser.add_argument("--revision", help="the only revision of the model that may answer")
    parser.add_argument("--seed", type=int, help="the same seed gives the same text")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's message")
    parser.add_argument("--timeout", type=float, default=300, help="seconds, at most 1500")
    parser.add_argument("--bulk", action="store_true", help="let interactive requests go first")
    parser.add_argument("--json", action="store_true", help="print one object at the end instead")
    args = parser.parse_args(argv)
    args.seed = secrets.randbits(53) if args.seed is None else args.seed
    if not 0 <= args.seed < 1 << 64:
        parser.error("--seed is between 0 and 2^64 - 1")
    if not 0 < args.timeout <= MAX_SECONDS:
        parser.error(f"--timeout is at most {MAX_SECONDS} seconds")
    return args


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    try:
        return Ask(args).run()
    except Failed as error:
        print(f"nsbridge_client: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
