"""Writes files of crates/crypto/vectors; has the worker's side of the protocol for the tests.

    python make_vectors.py > ../../crates/crypto/vectors/wire-v1-additions.json
    python make_vectors.py kms > ../../crates/crypto/vectors/wire-v1-kms.json

Written from the text of docs/protocol.md, not from the Rust code: two programs that produce these
bytes implement the same protocol. All values are fixed; a real sealer draws a new salt each time.
"""

from __future__ import annotations

import json
import struct
import sys

import nsbridge_client as client
from nsbridge_client import (
    CANCEL, DATA, FINAL_ERROR, FINAL_OK, HEARTBEAT, MOVED, OPEN, PIECES, PLAIN, RESUME,
    Refused, RequestHead,
)


class ReplySealer:
    """Worker's side of one reply stream. It owns the counter, so no nonce is used twice."""

    def __init__(self, root: bytes, request_id: bytes, attempt: int, salt: bytes):
        self.keys, self.stream_id = client.reply_keys(root, salt, request_id, attempt)
        self.request_id, self.seq = request_id, 0
        self.more = salt + struct.pack(">I", attempt) + self.keys.commitment

    def seal(self, kind: int, content: bytes = b"", content_type: int = PLAIN) -> bytes:
        header = b"NSBR" + bytes([client.VERSION, client.SUITE, kind, 0])
        header += self.request_id + self.stream_id + struct.pack(">Q", self.seq)
        header += self.more if kind == OPEN else b""
        frame = self.keys.seal(self.seq, header, client.pad(content_type, content))
        self.seq += 1
        return frame


def open_request(frame: bytes, key: bytes) -> tuple[RequestHead, bytes, bytes]:
    """Opens a request as a worker does; returns its head, its content and its reply root."""
    client.start(frame, b"NSBQ", 72)
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
    keys, root = client.request_keys(key, frame[24:56], frame[:at])
    keys.check(frame[at : at + 32])
    content_type, content = client.strip(keys.open(0, at + 32, frame))
    provider = client.KMS_PROVIDER if wrapped else client.KEYRING_PROVIDER
    if frame[6] != provider or content_type != PLAIN:
        raise Refused("its provider or content type is not known")
    return RequestHead(frame[8:24], created, expires, *names), content, root


def open_control(frame: bytes, root: bytes) -> tuple[int, bytes]:
    """Opens a control frame as a worker does; returns its kind and its content."""
    client.start(frame, b"NSBC", 88)
    if frame[6] > RESUME:
        raise Refused("its kind is not known")
    keys = client.control_key(root, frame[24:56], frame[8:24], frame[6])
    keys.check(frame[56:88])
    return frame[6], client.strip(keys.open(0, 88, frame))[1]


def run_record(root: bytes, reply_to: str) -> bytes:
    """Returns the digits in the queue name of a request's run record."""
    prk = client.extract(bytes(32), root)
    return client.expand(prk, b"nsbridge/1 runs\0" + reply_to.encode(), 16)


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def run(first: int, length: int = 32) -> bytes:
    """Returns bytes that count up, so that a dump shows where a field starts."""
    return bytes((first + i) % 256 for i in range(length))


MASTER, ROOT, REQUEST_ID = run(0x00), run(0x30), run(0xA0, 16)
FINGERPRINT = run(0xF0, 16).hex()
REPLY_TO = "nsbridge.reply." + run(0xC0, 16).hex()
TOKENS = [
    compact({"token": 5, "text": "Hel"}),
    compact({"token": 7, "text": "lo"}),
    compact({"token": 2, "text": "."}),
]


def reply(attempt: int, salt: bytes, frames: list[tuple[int, int, bytes]]) -> dict:
    sealer = ReplySealer(ROOT, REQUEST_ID, attempt, salt)
    rows = [
        {"kind": kind, "seq": seq, "content_type": content_type, "content": content.hex(),
         "frame": sealer.seal(kind, content, content_type).hex()}
        for seq, (kind, content_type, content) in enumerate(frames)
    ]
    return {"attempt_no": attempt, "attempt_salt": salt.hex(),
            "stream_id": sealer.stream_id.hex(), "frames": rows}


def opening(at: int, worker: str) -> tuple[int, int, bytes]:
    body = {"opened_at_ms": at, "fingerprint": FINGERPRINT, "worker": worker}
    return OPEN, PLAIN, compact(body)


def summary(chunks: int) -> bytes:
    usage = {"input_tokens": 4, "output_tokens": 3, "cached_tokens": 0}
    counts = {"chunks": chunks, "bytes": sum(map(len, TOKENS)), "pieces": len(TOKENS)}
    return compact({**counts, "finish_reason": "stop", "usage": usage})


def control(kind: int, salt: bytes, content: bytes) -> dict:
    frame = client.seal_control(ROOT, salt, REQUEST_ID, kind, content)
    return {"kind": kind, "salt": salt.hex(), "content": content.hex(), "frame": frame.hex()}


def vectors() -> dict:
    start = 1_800_000_000_000
    moved = [
        opening(start, "a"),
        (DATA, PIECES, client.write_pieces(0, TOKENS[:2])),
        (HEARTBEAT, PLAIN, b""),
        (MOVED, PLAIN, b""),
    ]
    resumed = [
        opening(start + 1000, "b"),
        (DATA, PIECES, client.write_pieces(2, TOKENS[2:])),
        (FINAL_OK, PLAIN, summary(1)),
    ]
    failure = compact({"code": "bad-input", "message": "no prompt", "chunks": 0})
    failed = [opening(start, "c"), (FINAL_ERROR, PLAIN, failure)]
    tenant = client.tenant_key(MASTER, "acme", "tale-7m")
    return {
        "request_id": REQUEST_ID.hex(),
        "reply_root": ROOT.hex(),
        "replies": [
            reply(1, run(0x50), moved),
            reply(2, run(0x70), resumed),
            reply(0x00010001, run(0x90), failed),
        ],
        "controls": [
            control(CANCEL, run(0xB0), b""),
            {**control(RESUME, run(0xD0), client.write_resume(FINGERPRINT, TOKENS[:2])),
             "fingerprint": FINGERPRINT, "pieces": [piece.hex() for piece in TOKENS[:2]]},
        ],
        "tenant_key": {
            "master": MASTER.hex(), "tenant": "acme", "model": "tale-7m", "key": tenant.hex(),
            "master_check": client.check_value(MASTER), "key_check": client.check_value(tenant),
        },
        "run_record": {"reply_to": REPLY_TO, "number": run_record(ROOT, REPLY_TO).hex()},
        "hint": {
            "code": "wrong-key", "number": 11,
            "frame": (b"NSBE\x01\x00" + struct.pack(">H", 11) + REQUEST_ID).hex(),
        },
    }


def kms_vectors() -> dict:
    """Returns a request under a data key of AWS KMS; its wrapped form is opaque to the protocol."""
    key, salt, wrapped = run(0x10), run(0x20), run(0x00, 184)
    arn = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    head = RequestHead(REQUEST_ID, 1_800_000_000_000, 1_800_000_300_000, "tale-7m", "acme", arn)
    content = compact({"seed": 7, "input": {"prompt": "hi"}})
    frame, root = client.seal_request(key, salt, head, content, wrapped)
    return {
        "key": key.hex(), "wrapped": wrapped.hex(), "key_id": arn, "salt": salt.hex(),
        "content": content.hex(), "request": frame.hex(), "reply_root": root.hex(),
    }


if __name__ == "__main__":
    json.dump(kms_vectors() if sys.argv[1:] == ["kms"] else vectors(), sys.stdout, indent=1)
    print()
