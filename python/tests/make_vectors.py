"""Writes files of crates/crypto/vectors and crates/client/vectors.

    python make_vectors.py > ../../crates/crypto/vectors/wire-v1-additions.json
    python make_vectors.py kms > ../../crates/crypto/vectors/wire-v1-kms.json
    python make_vectors.py flow > ../../crates/client/vectors/flow-v1.json

Written from the text of docs/protocol.md, not from the Rust code: two programs that produce these
bytes implement the same protocol. All values are fixed; a real sealer draws a new salt each time.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys

from nsbridge.constants import (
    CANCEL,
    DATA,
    FINAL_ERROR,
    FINAL_OK,
    HEARTBEAT,
    MOVED,
    OPEN,
    PIECES,
    PLAIN,
    RESUME,
)
from nsbridge.frames import RequestHead, seal_control, seal_request, write_pieces, write_resume
from nsbridge.keys import check_value, tenant_key
from worker import ReplySealer, compact, run_record


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
        {
            "kind": kind,
            "seq": seq,
            "content_type": content_type,
            "content": content.hex(),
            "frame": sealer.seal(kind, content, content_type).hex(),
        }
        for seq, (kind, content_type, content) in enumerate(frames)
    ]
    return {
        "attempt_no": attempt,
        "attempt_salt": salt.hex(),
        "stream_id": sealer.stream_id.hex(),
        "frames": rows,
    }


def opening(at: int, worker: str) -> tuple[int, int, bytes]:
    body = {"opened_at_ms": at, "fingerprint": FINGERPRINT, "worker": worker}
    return OPEN, PLAIN, compact(body)


def summary(chunks: int) -> bytes:
    usage = {"input_tokens": 4, "output_tokens": 3, "cached_tokens": 0}
    counts = {"chunks": chunks, "bytes": sum(map(len, TOKENS)), "pieces": len(TOKENS)}
    return compact({**counts, "finish_reason": "stop", "usage": usage})


def control(kind: int, salt: bytes, content: bytes) -> dict:
    frame = seal_control(ROOT, salt, REQUEST_ID, kind, content)
    return {"kind": kind, "salt": salt.hex(), "content": content.hex(), "frame": frame.hex()}


def vectors() -> dict:
    start = 1_800_000_000_000
    moved = [
        opening(start, "a"),
        (DATA, PIECES, write_pieces(0, TOKENS[:2])),
        (HEARTBEAT, PLAIN, b""),
        (MOVED, PLAIN, b""),
    ]
    resumed = [
        opening(start + 1000, "b"),
        (DATA, PIECES, write_pieces(2, TOKENS[2:])),
        (FINAL_OK, PLAIN, summary(1)),
    ]
    failure = compact({"code": "bad-input", "message": "no prompt", "chunks": 0})
    failed = [opening(start, "c"), (FINAL_ERROR, PLAIN, failure)]
    tenant = tenant_key(MASTER, "acme", "tale-7m")
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
            {
                **control(RESUME, run(0xD0), write_resume(FINGERPRINT, TOKENS[:2])),
                "fingerprint": FINGERPRINT,
                "pieces": [piece.hex() for piece in TOKENS[:2]],
            },
        ],
        "tenant_key": {
            "master": MASTER.hex(),
            "tenant": "acme",
            "model": "tale-7m",
            "key": tenant.hex(),
            "master_check": check_value(MASTER),
            "key_check": check_value(tenant),
        },
        "run_record": {"reply_to": REPLY_TO, "number": run_record(ROOT, REPLY_TO).hex()},
        "hint": {
            "code": "wrong-key",
            "number": 11,
            "frame": (b"NSBE\x01\x00" + struct.pack(">H", 11) + REQUEST_ID).hex(),
        },
    }


def kms_vectors() -> dict:
    """Returns a request under a data key of AWS KMS; its wrapped form is opaque to the protocol."""
    key, salt, wrapped = run(0x10), run(0x20), run(0x00, 184)
    arn = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    head = RequestHead(REQUEST_ID, 1_800_000_000_000, 1_800_000_300_000, "tale-7m", "acme", arn)
    content = compact({"seed": 7, "input": {"prompt": "hi"}})
    frame, root = seal_request(key, salt, head, content, wrapped)
    return {
        "key": key.hex(),
        "wrapped": wrapped.hex(),
        "key_id": arn,
        "salt": salt.hex(),
        "content": content.hex(),
        "request": frame.hex(),
        "reply_root": root.hex(),
    }


def flow_vectors() -> list[dict]:
    """Returns seeds of the steps of flows; the last ones are of a flow within a flow."""

    def row(seed: int, number: int) -> dict:
        digest = hashlib.sha256(b"nsbridge flow\0" + struct.pack(">QQ", seed, number)).digest()
        bits = "".join(f"{byte:08b}" for byte in digest)[:53]
        return {"seed": seed, "number": number, "step_seed": int(bits, 2)}

    seeds = [0, 7, (1 << 53) - 1, (1 << 64) - 1]
    rows = [row(seed, number) for seed in seeds for number in (0, 1, 2, (1 << 64) - 1)]
    part = row(7, 3)["step_seed"]
    return rows + [row(7, 3), row(part, 0), row(part, 1)]


MADE = {"kms": kms_vectors, "flow": flow_vectors}

if __name__ == "__main__":
    made = MADE[sys.argv[1]]() if sys.argv[1:] else vectors()
    json.dump(made, sys.stdout, indent=1)
    print()
