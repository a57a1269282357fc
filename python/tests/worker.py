"""Worker's side of the protocol, for tests that need no broker."""

from __future__ import annotations

import json
import os
import struct

from nsbridge.constants import (
    DATA,
    FINAL_OK,
    KEYRING_PROVIDER,
    KMS_PROVIDER,
    OPEN,
    PIECES,
    PLAIN,
    RESUME,
    SUITE,
    VERSION,
)
from nsbridge.frames import RequestHead, pad, start, strip, write_pieces
from nsbridge.keys import Refused, control_key, expand, extract, reply_keys, request_keys
from nsbridge.merge import Merge


class ReplySealer:
    """Worker's side of one reply stream. It owns the counter, so no nonce is used twice."""

    def __init__(self, root: bytes, request_id: bytes, attempt: int, salt: bytes):
        self.keys, self.stream_id = reply_keys(root, salt, request_id, attempt)
        self.request_id, self.seq = request_id, 0
        self.more = salt + struct.pack(">I", attempt) + self.keys.commitment

    def seal(self, kind: int, content: bytes = b"", content_type: int = PLAIN) -> bytes:
        header = b"NSBR" + bytes([VERSION, SUITE, kind, 0])
        header += self.request_id + self.stream_id + struct.pack(">Q", self.seq)
        header += self.more if kind == OPEN else b""
        frame = self.keys.seal(self.seq, header, pad(content_type, content))
        self.seq += 1
        return frame


def open_request(frame: bytes, key: bytes) -> tuple[RequestHead, bytes, bytes]:
    """Opens a request as a worker does; returns its head, its content and its reply root."""
    start(frame, b"NSBQ", 72)
    created, expires = struct.unpack_from(">QQ", frame, 56)
    names, at = [], 72
    for _ in range(3):
        end = at + 1 + (frame[at] if at < len(frame) else 0)
        names.append(frame[at + 1 : end].decode(errors="replace"))
        at = end
    if len(frame) < at + 2:
        raise Refused("it ends in its header")
    wrapped = struct.unpack_from(">H", frame, at)[0]  # 0 for a keyring
    at += 2 + wrapped
    keys, root = request_keys(key, frame[24:56], frame[:at])
    keys.check(frame[at : at + 32])
    content_type, content = strip(keys.open(0, at + 32, frame))
    provider = KMS_PROVIDER if wrapped else KEYRING_PROVIDER
    if frame[6] != provider or content_type != PLAIN:
        raise Refused("its provider or content type is not known")
    return RequestHead(frame[8:24], created, expires, *names), content, root


def open_control(frame: bytes, root: bytes) -> tuple[int, bytes]:
    """Opens a control frame as a worker does; returns its kind and its content."""
    start(frame, b"NSBC", 88)
    if frame[6] > RESUME:
        raise Refused("its kind is not known")
    keys = control_key(root, frame[24:56], frame[8:24], frame[6])
    keys.check(frame[56:88])
    return frame[6], strip(keys.open(0, 88, frame))[1]


def run_record(root: bytes, reply_to: str) -> bytes:
    """Returns the digits in the queue name of a request's run record."""
    prk = extract(bytes(32), root)
    return expand(prk, b"nsbridge/1 runs\0" + reply_to.encode(), 16)


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


ID, ROOT, KEY = bytes([7]) * 16, bytes([1]) * 32, bytes(range(32))


def token(number: int, text: str, **more) -> bytes:
    return compact({"token": number, "text": text, **more})


WORDS = [token(i, f"w{i} ") for i in range(6)]


class Attempt:
    """Worker's stream, whose frames a test can reorder or change."""

    def __init__(
        self,
        attempt: int = 1,
        opened_at: int = 1000,
        root: bytes = ROOT,
        fingerprint: str = "00" * 16,
        request_id: bytes = ID,
    ):
        self.root, self.chunks = root, 0
        self.sealer = ReplySealer(root, request_id, attempt, os.urandom(32))
        body = {"opened_at_ms": opened_at, "fingerprint": fingerprint, "worker": "w", "new": 1}
        self.open = self.sealer.seal(OPEN, compact(body))

    def data(self, first: int, pieces: list[bytes]) -> bytes:
        self.chunks += 1
        return self.sealer.seal(DATA, write_pieces(first, pieces), PIECES)

    def finish(self, words: list[bytes], **other) -> bytes:
        counts = {"chunks": self.chunks, "pieces": len(words), "bytes": sum(map(len, words))}
        return self.sealer.seal(FINAL_OK, compact({**counts, **other}))


def forged(frame: bytes) -> bytes:
    """Forges a frame as an attacker without a key who can write to the reply queue."""
    return frame[:-1] + bytes([frame[-1] ^ 1])


class Replay:
    """Merge with its results."""

    def __init__(self) -> None:
        self.merge = Merge(ID, [ROOT])
        self.given: list[bytes] = []

    def feed(self, *frames: bytes, reply_to: str = "control") -> list[str]:
        """Returns the kinds of the events; keeps the caller's pieces in `given`."""
        self.events = [e for frame in frames for e in self.merge.feed(frame, reply_to)]
        for event in self.events:
            if event.kind == "restarted":
                del self.given[event.value :]
            elif event.kind == "pieces":
                self.given += event.value
        return [event.kind for event in self.events]
