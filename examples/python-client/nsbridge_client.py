"""A client of the nsbridge protocol, version 1, in one file.

It seals a request, publishes it to a model's queue, opens the streamed reply and merges the
attempts of workers that come and go. `docs/protocol.md` is the text behind every line here.

    python nsbridge_client.py --url amqp://guest:guest@localhost:5672/%2f --keyring keys.json \
        --model tale-7m --tenant demo "Once a bear"

Parts 1 to 6 are pure: no network, no clock. Part 7 talks to RabbitMQ, part 8 is the command.
Left out: key services, object storage.
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

# --- 1. Words of the protocol -------------------------------------------------------------------

CONTENT_TYPE = "application/vnd.nsbridge.v1"
VERSION, SUITE = 1, 1
KEYRING_PROVIDER, KMS_PROVIDER = range(2)
PLAIN, PIECES = 1, 2  # how the content of a frame is read
OPEN, DATA, HEARTBEAT, FINAL_OK, FINAL_ERROR, MOVED = range(6)  # kinds of NSBR
CANCEL, RESUME = range(2)  # kinds of NSBC
MAX_REQUEST_BYTES = 8 << 20
MAX_WRAPPED_BYTES = 4 << 10
MAX_AHEAD = 256  # frames of one stream that may wait for their turn
MAX_EARLY, MAX_EARLY_BYTES = 256, 1 << 20  # frames of one request that may wait for an open
MAX_STREAMS = 4  # of one request that are followed at once
MAX_GONE = 64  # of one request that are remembered after that
MAX_WORKERS = 8  # of one request that are told of its end
MAX_HINTS = 16  # of one request that are shown
PREFETCH = 512  # reply frames that the broker may send ahead of their acks
MAX_SECONDS = 25 * 60
ALLOW_PLAINTEXT = "allow_plaintext=true"  # in a URL: a broker on another machine without TLS
SILENCE_S = 15  # without a frame: the caller is told
QUIET_S = 6  # after a loss: the request is sealed again. A worker that lives is heard every 5 s
SILENT_S = 90  # the same, once, of a request that was opened, where nothing tells of a loss
MAX_AGAIN = 3
PAUSE_S, LONGEST_PAUSE_S = 0.2, 5  # before a copy that the broker refused is published again
CODES = (
    "bad-input model-failed cancelled deadline expired clock-skew malformed unsupported-version "
    "oversized unknown-key wrong-key tampered wrong-model key-scope poison reply-too-large "
    "key-denied internal wrong-revision"
).split()  # the code with number n is CODES[n - 1]
USAGE = "input_tokens output_tokens cached_tokens drafted_tokens accepted_tokens".split()
REASONS = ("stop", "length", "stop_text")  # why a reply ended

REPLY_EXCHANGE, CONTROL_EXCHANGE = "nsbridge.reply", "nsbridge.control"
REPLY_QUEUE_ARGUMENTS = {
    "x-queue-type": "classic",
    "x-expires": 15_000,
    "x-max-length-bytes": 64 << 20,
    "x-overflow": "reject-publish",
}


class Refused(Exception):
    """A frame that is not what it claims to be. It is dropped as if it had never come."""


class Failed(Exception):
    """What ends the command with one sentence."""


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
    """The cipher of one frame or one stream, and what commits to it."""

    def __init__(self, material: bytes):
        self.key, self.base, self.commitment = material[:32], material[32:44], material[44:76]
        self._gcm = AESGCM(self.key)

    def check(self, commitment: bytes) -> None:
        """Compared before anything is decrypted: tells a wrong key from changed bytes."""
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
    """The key of a request, and the root of all keys of its replies."""
    digest = hashlib.sha512(header).digest()
    prk = extract(salt, key)
    frame_key = FrameKey(expand(prk, b"nsbridge/1 request\0" + digest, 76))
    return frame_key, expand(prk, b"nsbridge/1 reply-root\0" + digest, 32)


def reply_keys(root: bytes, salt: bytes, request_id: bytes, attempt: int) -> tuple[FrameKey, bytes]:
    """The key of one reply stream, and its identifier."""
    info = b"nsbridge/1 reply\0" + request_id + struct.pack(">I", attempt)
    material = expand(extract(salt, root), info, 92)
    return FrameKey(material[:76]), material[76:]


def control_key(root: bytes, salt: bytes, request_id: bytes, kind: int) -> FrameKey:
    info = b"nsbridge/1 control\0" + request_id + bytes([kind])
    return FrameKey(expand(extract(salt, root), info, 76))


def tenant_key(master: bytes, tenant: str, model: str) -> bytes:
    """What a tenant holds for a model instead of the master key."""
    t, m = tenant.encode(), model.encode()
    lengths = struct.pack(">I", len(t)), struct.pack(">I", len(m))
    info = b"nsbridge/1 tenant\0" + lengths[0] + t + lengths[1] + m
    return expand(extract(bytes(32), master), info, 32)


def check_value(key: bytes) -> str:
    """Sixteen public hex digits that tell a key from one that was pasted wrong."""
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
    """Checks what every frame begins with, and that the fixed header is all there."""
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
    """The frame, and the root of its replies' keys. The salt must be fresh for each sealing.

    A data key of AWS KMS comes with itself `wrapped`; the head's key id is the KMS key's then.
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
    """The request and the code of an NSBE. Anybody can have written it: shown, never acted on."""
    if len(frame) != 24 or frame[:6] != b"NSBE\x01\x00":
        return None
    number = struct.unpack_from(">H", frame, 6)[0]
    return frame[8:], CODES[number - 1] if 1 <= number <= len(CODES) else "internal"


def write_pieces(first: int, pieces: list[bytes]) -> bytes:
    return struct.pack(">I", first) + b"".join(struct.pack(">I", len(p)) + p for p in pieces)


def read_pieces(content: bytes) -> tuple[int, list[bytes]]:
    if len(content) < 4:
        raise Refused("it is no piece frame")
    first, at, pieces = struct.unpack_from(">I", content)[0], 4, []
    while at < len(content):
        if at + 4 > len(content):
            raise Refused("a piece frame ends in the middle of a length")
        end = at + 4 + struct.unpack_from(">I", content, at)[0]
        if end > len(content):
            raise Refused("a piece frame ends in the middle of a piece")
        pieces.append(content[at + 4 : end])
        at = end
    return first, pieces


def write_resume(fingerprint: str | None, pieces: list[bytes]) -> bytes:
    header = json.dumps({"fingerprint": fingerprint, "n": len(pieces)}, separators=(",", ":"))
    return struct.pack(">I", len(header)) + header.encode() + write_pieces(0, pieces)


def read_json(content_type: int, content: bytes) -> dict:
    """An object with whatever fields; fields that are not known are left alone."""
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


def text_seam(piece: bytes) -> bytes:
    """What two attempts at a text are compared by: token id and text, no log-probabilities."""
    try:
        value = json.loads(piece)
        return struct.pack(">I", value["token"]) + value["text"].encode()
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, struct.error):
        return piece


class Event(NamedTuple):
    """What came of a frame: opened, pieces, restarted, moved, done, failed, hint or control.

    The value of a `control` is a `Letter`. A silence leads to `waiting`, and to `enqueue` with
    a `Copy`.
    """

    kind: str
    value: object = None


class Letter(NamedTuple):
    """A control frame that is to be sealed and sent."""

    kind: int
    content: bytes
    key: str | None  # the worker's control queue; None if it is not known: all of the model
    root: bytes  # of the enqueue that it is about: no other worker can open it


class Copy(NamedTuple):
    """A sealed request that is to be enqueued."""

    frame: bytes
    again: int  # copies that were enqueued before it


LIVE, STALE, ENDED = "live", "stale", "ended"


@dataclass(eq=False)
class Stream:
    """One attempt's reply as far as it was read."""

    keys: FrameKey
    rank: tuple  # enqueue, attempt number, when it was opened, stream id
    root: bytes
    reply_to: str | None
    fingerprint: str | None
    next: int = 1
    position: int | None = None  # index of the next piece; None before the first piece
    chunks: int = 0
    bytes: int = 0  # of the pieces before `position`, as this stream has them
    state: str = LIVE  # a stale one is read for its end alone
    ahead: dict[int, tuple] = field(default_factory=dict)  # kind and content, by number

    def keep(self, head: ReplyHead, frame: bytes) -> bool:
        """Rule C2: keeps a genuine frame for its turn. False for one that was here before.

        It is opened at once: what is not genuine must not take the place of what is. There is one
        place more for the last frame: it tells that what is missing will not come.
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
        """The next frame as (kind, content type, content), if it is there."""
        frame = self.ahead.pop(self.next, None)
        self.next += frame is not None
        return frame

    def distrust(self) -> None:
        """Its pieces do not count any more."""
        if self.state == LIVE:
            self.state = STALE

    def end(self) -> None:
        self.state = ENDED
        self.ahead.clear()

    @property
    def gap(self) -> bool:
        """Frames are missing before one that came: they may be sent again, or come back."""
        return self.state == LIVE and bool(self.ahead)


@dataclass
class Merge:
    """One request's pieces, from all the streams that answer it."""

    request_id: bytes
    roots: list[bytes]  # of the reply keys, in the order of enqueue
    seam: Callable[[bytes], bytes] = text_seam
    pieces: list[bytes] = field(default_factory=list)
    streams: dict[bytes, Stream] = field(default_factory=dict)  # four, those that ended among them
    gone: dict[bytes, None] = field(default_factory=dict)  # ids of those that made room for others
    workers: list[Stream] = field(default_factory=list)  # the newest that have not ended
    early: list[bytes] = field(default_factory=list)  # frames whose stream has not opened yet
    events: list[Event] = field(default_factory=list)  # what came of frames and is not given yet
    over: bool = False  # done, failed or cancelled: a further open is answered by `cancel`
    holder: Stream | None = None  # the stream that last extended the pieces
    answered: set[bytes] = field(default_factory=set)  # roots under which a stream was opened
    heard: int = 0  # genuine frames, each counted once
    highest: tuple | None = None  # the rank of the highest stream that ever opened
    moved: tuple | None = None  # of the highest of those that ended in `moved`
    broken_end: bool = False  # an end came that what came before does not lead up to

    def enqueued(self, root: bytes) -> None:
        """The request was sealed and enqueued once more."""
        self.roots.append(root)
        self.broken_end = False  # until another comes

    @property
    def held(self) -> bool:
        """Whether a worker opened the request, and the highest stream did not move."""
        return self.highest is not None and self.highest != self.moved

    def feed(self, frame: bytes, reply_to: str | None = None) -> list[Event]:
        """Takes one message of the reply queue. Nothing comes of one that is not genuine.

        What came of it before a `seam` raised is not lost: the next call gives it.
        """
        try:
            self._feed(frame, reply_to)
        except Refused:
            pass  # as if it had never come
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
        """After a reconnect an open may be handed out behind its frames: they wait for it.

        Nobody can verify them yet. So there is room for little, and a forged one takes no other's
        place: all that claim to be number n of a stream are kept.
        """
        if frame in self.early or len(frame) > MAX_EARLY_BYTES:
            return
        self.early.append(frame)
        while len(self.early) > MAX_EARLY or sum(map(len, self.early)) > MAX_EARLY_BYTES:
            del self.early[0]

    def _catch_up(self, stream_id: bytes, stream: Stream) -> None:
        """Reads what came before the open of this stream."""
        early = [(reply_head(frame), frame) for frame in self.early]
        self.early = [frame for head, frame in early if head.stream_id != stream_id]
        for head, frame in early:
            if head.stream_id == stream_id and not self.over:
                try:
                    self._keep(stream, head, frame)
                except Refused:
                    pass  # this one alone

    def _keep(self, stream: Stream, head: ReplyHead, frame: bytes) -> None:
        """Rule C2: reads a frame if its turn has come, and those that waited for it."""
        if not stream.keep(head, frame):
            return
        self.heard += 1
        if head.seq > stream.next and head.kind in (FINAL_OK, FINAL_ERROR):
            self._note_broken_end(stream)
        while not self.over and (next_one := stream.turn()):
            try:
                self._read(stream, *next_one)
            except Refused:  # sealed by its worker, and no sense in it: another may do better
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
        """The job is over for the worker of this stream, and not here. Of a stale stream that
        matters only if no other is above it: its worker held the request."""
        self.broken_end |= stream.state == LIVE or stream.rank == self.highest

    def cancels(self) -> list[Event]:
        """A `cancel` for every stream that still runs, and for every copy that nobody opened."""
        live = [s for s in self.workers if s.state != ENDED]
        letters = [Letter(CANCEL, b"", s.reply_to, s.root) for s in live]
        letters += [Letter(CANCEL, b"", None, r) for r in self.roots if r not in self.answered]
        return [Event("control", letter) for letter in dict.fromkeys(letters)]

    def _enqueue_of(self, head: ReplyHead, frame: bytes, attempt: int) -> tuple[int, FrameKey]:
        """The enqueue that an open belongs to: only its root fits the commitment."""
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
        if attempt > 1:  # its worker waits for it, though nothing may be here
            made_by = self.holder.fingerprint if self.holder else None
            resume = write_resume(made_by, self.pieces)
            self._tell("control", Letter(RESUME, resume, reply_to, root))
        self._catch_up(head.stream_id, stream)

    def _make_room(self) -> None:
        """A killed worker's stream never ends: the least goes; what it still sends is dropped."""
        if len(self.streams) < MAX_STREAMS:
            return
        least = min(self.streams.items(), key=lambda item: (item[1].state == LIVE, item[1].rank))[0]
        del self.streams[least]
        self._forget(least)

    def _forget(self, stream_id: bytes) -> None:
        """Nothing opens it again."""
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
        equal = [self.seam(old) == self.seam(new) for old, new in zip(known, pieces)]
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
        """Whether it goes on from pieces of another kind of worker than those that are here."""
        begins = stream.position is None and first > 0 and self.holder is not None
        return begins and self.holder.fingerprint != stream.fingerprint

    def _append(self, stream: Stream, fresh: list[bytes]) -> None:
        if fresh:
            self.pieces += fresh
            self.holder = stream
            self._tell("pieces", fresh)

    def _disagree(self, stream: Stream, kept: int, pieces: list[bytes]) -> None:
        """Rule C4: the higher rank wins; the caller learns how much of the old text stands."""
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
        """Rule C5. A reply that ends before the pieces do is a disagreement like any other."""
        chunks, claimed, size = (summary[name] for name in ("chunks", "pieces", "bytes"))
        position, length, foreign = stream.position, stream.bytes, False
        if position is None:  # its worker had nothing to add to what it was handed
            position, length = claimed, self._bytes(claimed)
            foreign = self._foreign(stream, claimed)
        agree = (stream.chunks, position, length) == (chunks, claimed, size)
        if foreign or not agree or position > len(self.pieces):
            return None  # no end: a part is missing
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
    """The entries of a keyring's JSON. No message of this function ever quotes the text."""
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
    """Reads a keyring file, unless others on this machine can read it too."""
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
    """The primary key for this model and tenant, and its id."""
    entry = next(e for e in entries if e["state"] == "primary")
    for allowed, wanted in ((entry.get("models"), model), (entry.get("tenants"), tenant)):
        if allowed is not None and wanted not in allowed:
            raise Failed(f"the key `{entry['id']}` does not serve `{wanted}`")
    if entry.get("derived"):
        return entry["id"], tenant_key(entry["key"], tenant, model)
    return entry["id"], entry["key"]


# --- 6. Patience: rule C6 ------------------------------------------------------------------------


class Inquiry:
    """One request from its first sealing to its end; the caller has the clock and the wire."""

    def __init__(self, key: bytes, head: RequestHead, content: bytes, now: float):
        self.key, self.head, self.content = key, head, content
        self.merge = Merge(head.id, [])
        self.told = self.heard = now  # of a silence; of a worker
        self.asked = self.listening = now  # when it was enqueued; since when it can be heard
        self.lost: float | None = None  # when replies were lost, if nothing was heard since

    def seal(self) -> Copy:
        """One more enqueue: the same request under a fresh salt, and so a reply root of its own."""
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
        """The reply queue was gone, with all that it held, and is there again."""
        self.lost = now

    def due(self, now: float) -> list[Event]:
        """What a silence calls for."""
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
        elif self.merge.held and copies == 1:  # a broker may keep what a lost consumer held to itself
            patience = SILENT_S
        else:  # it may wait for its turn
            return events
        moments = (self.heard, self.listening, self.lost, self.asked)
        since = max(moment for moment in moments if moment is not None)
        if copies <= MAX_AGAIN and now - since >= patience << (copies - 1):
            self.asked = now
            if missing:
                self.lost = now  # once more only if this copy brings no sign of life either
            events.append(Event("enqueue", self.seal()))
        return events


# --- 7. RabbitMQ ---------------------------------------------------------------------------------


def uuid7(now_ms: int) -> bytes:
    """RFC 9562, 5.7: 48 bits of time, then randomness around version and variant."""
    value = now_ms << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    return value.to_bytes(16, "big")


def private(url: str) -> str:
    """The URL for pika. One to another machine without TLS needs `?allow_plaintext=true`."""
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
    """One connection and this client's reply queue, opened again when it is lost."""

    def __init__(self, url: str):
        import pika  # here, so that the pure parts can be tested without it

        self.pika = pika
        logging.getLogger("pika").addHandler(logging.NullHandler())
        logging.getLogger("pika").propagate = False  # it would tell of each error in its own way
        self.queue = f"nsbridge.reply.{secrets.randbits(128):032x}"
        try:
            self.parameters = pika.URLParameters(private(url))
        except Failed:
            raise
        except Exception as error:  # it raises many kinds, and may quote the password
            raise Failed("the URL is not amqp://user:password@host:5672/%2f") from error
        # Well below the fifteen seconds for which an unused reply queue is kept.
        self.parameters.socket_timeout = self.parameters.stack_timeout = 5
        self.parameters.blocked_connection_timeout = 10
        self.take: Callable = lambda *_: None
        self.trouble: Failed | None = None  # why there is no connection
        self.lost = False  # the reply queue was gone, with what it held for us
        self.connect()
        self.lost = False  # it is new

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
            try:  # most brokers have them; then no right to configure them is needed
                self.connection.channel().exchange_declare(exchange, "direct", passive=True)
            except self.pika.exceptions.ChannelClosedByBroker:
                self.connection.channel().exchange_declare(exchange, "direct", durable=True)
        try:  # first of all: a queue that somebody takes from does not expire
            self._subscribe()
        except self.pika.exceptions.ChannelClosedByBroker:
            self.lost = True  # noted before it is made anew: what follows may fail
            self._declare_queue(self.connection.channel())
            self._subscribe()
        else:  # it may have been made by a try that failed before it was bound
            self._declare_queue(self.channel)

    def _declare_queue(self, channel) -> None:
        channel.queue_declare(self.queue, durable=True, arguments=REPLY_QUEUE_ARGUMENTS)
        channel.queue_bind(self.queue, REPLY_EXCHANGE, routing_key=self.queue)

    def _subscribe(self) -> None:
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.basic_qos(prefetch_count=PREFETCH)
        # The broker ends the subscription when somebody deletes the queue.
        self.channel.add_on_cancel_callback(lambda _: self._give_up("the reply queue was deleted"))
        self.channel.basic_consume(self.queue, self._on_message)

    def _on_message(self, channel, method, properties, body) -> None:
        self.take(body, properties.reply_to)
        channel.basic_ack(method.delivery_tag)  # by hand, after use: what is lost comes again

    def _give_up(self, reason: object) -> None:
        self.trouble = Failed(f"lost the broker: {reason}")

    def publish_request(self, head: RequestHead, copy: Copy) -> bool:
        """False if the connection is gone: then the same bytes must be published again."""
        text = str(uuid.UUID(bytes=head.id))
        headers = {"nsb-model": head.model, "nsb-kid": head.key_id}
        if copy.again:  # then its worker waits for what is here already
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
        queue = f"nsbridge.{head.model}"
        try:
            return self._publish("", queue, copy.frame, properties, mandatory=True)
        except self.pika.exceptions.UnroutableError as error:
            raise Failed(f"there is no queue {queue}: no worker has served this model yet") from error
        except self.pika.exceptions.NackError as error:
            raise Failed(f"the queue {queue} is full, try again later") from error

    def publish_control(self, frame: bytes, request_id: bytes, key: str) -> bool:
        """Not mandatory, nor again if refused: a worker that does not read it reads the next."""
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
        """Returns when the broker has confirmed, or the connection is gone."""
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
        """Takes what comes. True if the reply queue was found to be gone, with what it held.

        After a lost connection the same queue is consumed again, and what it held comes back.
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
            pass  # it is closed

    def close(self) -> None:
        """Deletes the queue; what is left without that goes after fifteen seconds."""
        try:
            self.channel.queue_delete(self.queue)
        except self.pika.exceptions.AMQPError:
            pass
        self._drop()


# --- 8. The command ------------------------------------------------------------------------------


class Ask:
    """One request on its way: shows what comes, publishes what is to be sent."""

    def __init__(self, args: argparse.Namespace, clock: Callable[[], float] = time.monotonic):
        key_id, key = sealing_key(load_keyring(args.keyring), args.model, args.tenant)
        self.args, self.clock, self.notes = args, clock, sys.stderr
        self.interrupted = False
        self.finished: Event | None = None
        self.restarts, self.attempts = 0, 0
        self.hints: list[str] = []
        self.revision: str | None = None  # of the model, at the worker that opened last
        now = int(time.time() * 1000)
        expires = now + int(args.timeout * 1000)
        self.head = RequestHead(uuid7(now), now, expires, args.model, args.tenant, key_id)
        asked = {"seed": args.seed, "input": text_input(args)}
        if args.revision is not None:
            asked["revision"] = args.revision
        content = json.dumps(asked).encode()
        self.inquiry = Inquiry(key, self.head, content, clock())
        self.merge = self.inquiry.merge
        # What the broker has not confirmed: it stays here through any number of connections.
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
                # Nothing can come without a connection, and nothing helps after the deadline.
                if not link.trouble and self.clock() < deadline:
                    self._on_events(self.inquiry.due(self.clock()))
            return self._end()
        except BrokenPipeError:
            self._cancel()
            self._publish()
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no second complaint
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
                if not self.link.publish_request(self.head, self.requests[0]):
                    break
                del self.requests[0]
                self.pause = PAUSE_S
        except Failed:
            if len(self.merge.roots) == 1:
                raise
            # A full queue is no reason to give a copy up: this request was asked already.
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
            # Anybody can send any number.
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
        """To every worker that answers; for a copy that none has opened, to all of the model."""
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
    """The text of pieces that are TextPiece or a JSON string; of any other, the piece itself."""
    texts = []
    for piece in pieces:
        try:
            value = json.loads(piece)
            text = value["text"] if isinstance(value, dict) else value
        except (ValueError, RecursionError, KeyError):
            text = None
        texts.append(text if isinstance(text, str) else piece.decode(errors="replace"))
    return "".join(texts).encode(errors="replace").decode()  # JSON can name halves of characters


def text_input(args: argparse.Namespace) -> dict:
    """TextInput: fields that are not given are left out, so that the handler's defaults hold."""
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
