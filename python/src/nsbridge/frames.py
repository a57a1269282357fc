"""Frames: sealing of requests and control frames, and the layout of replies."""

from __future__ import annotations

import json
import secrets
import struct
from dataclasses import dataclass
from typing import NamedTuple

from .constants import (
    CODES,
    KEYRING_PROVIDER,
    KMS_PROVIDER,
    MAX_REQUEST_BYTES,
    MAX_WRAPPED_BYTES,
    MOVED,
    PIECES,
    PLAIN,
    SUITE,
    VERSION,
)
from .errors import InvalidRequest
from .keys import Refused, control_key, request_keys


def uuid7(now_ms: int) -> bytes:
    """Returns a UUIDv7 (RFC 9562, 5.7): 48 bits of time, then random bits with the version."""
    value = now_ms << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    return value.to_bytes(16, "big")


def pad(content_type: int, content: bytes) -> bytes:
    """Returns a plaintext: type, length, content, zeros up to a multiple of 64."""
    text = bytes([content_type]) + struct.pack(">I", len(content)) + content
    return text + bytes(-len(text) % 64)


def strip(text: bytes) -> tuple[int, bytes]:
    """Returns content type and content of a plaintext."""
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
    """Header of a request, up to its wrapped key."""

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
        raise InvalidRequest(
            f"the request has {len(content)} bytes, {MAX_REQUEST_BYTES} are the most"
        )
    provider = KMS_PROVIDER if wrapped else KEYRING_PROVIDER
    header = b"NSBQ" + bytes([VERSION, SUITE, provider, 0]) + head.id + salt
    header += struct.pack(">QQ", head.created_at_ms, head.expires_at_ms)
    for text in (head.model, head.tenant, head.key_id):
        raw = text.encode()
        if not 1 <= len(raw) <= 255:
            raise InvalidRequest("model, tenant and key id have 1 to 255 bytes each")
        header += bytes([len(raw)]) + raw
    if len(wrapped) > MAX_WRAPPED_BYTES:
        raise InvalidRequest(f"a wrapped key has at most {MAX_WRAPPED_BYTES} bytes")
    header += struct.pack(">H", len(wrapped)) + wrapped
    keys, root = request_keys(key, salt, header)
    return keys.seal(0, header + keys.commitment, pad(PLAIN, content)), root


def seal_control(root: bytes, salt: bytes, request_id: bytes, kind: int, content: bytes) -> bytes:
    """Seals a control frame. The salt must be new for each frame."""
    keys = control_key(root, salt, request_id, kind)
    header = b"NSBC" + bytes([VERSION, SUITE, kind, 0]) + request_id + salt + keys.commitment
    return keys.seal(0, header, pad(PLAIN, content))


class ReplyHead(NamedTuple):
    """Fixed header of a frame of a reply."""

    kind: int
    request_id: bytes
    stream_id: bytes
    seq: int


def reply_head(frame: bytes) -> ReplyHead:
    """Parses the fixed header of a frame of a reply."""
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
    """Writes a piece list."""
    return struct.pack(">I", first) + b"".join(struct.pack(">I", len(p)) + p for p in pieces)


def read_pieces(content: bytes) -> tuple[int, list[bytes]]:
    """Reads a piece list: the index of its first piece, and the pieces."""
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
    """Writes the content of a resume."""
    header = json.dumps({"fingerprint": fingerprint, "n": len(pieces)}, separators=(",", ":"))
    return struct.pack(">I", len(header)) + header.encode() + write_pieces(0, pieces)
