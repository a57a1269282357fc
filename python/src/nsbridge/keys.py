"""Key schedule: HKDF-SHA-512 (RFC 5869) and AES-256-GCM."""

from __future__ import annotations

import hashlib
import hmac
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class Refused(Exception):
    """Frame that does not verify or has invalid content. The frame is dropped."""


def extract(salt: bytes, key: bytes) -> bytes:
    """Computes the first step of HKDF."""
    return hmac.digest(salt, key, "sha512")


def expand(prk: bytes, info: bytes, length: int) -> bytes:
    """Computes the second step of HKDF."""
    out, block = b"", b""
    for counter in range(1, -(-length // 64) + 1):
        block = hmac.digest(prk, block + info + bytes([counter]), "sha512")
        out += block
    return out[:length]


class FrameKey:
    """Cipher of one frame or one stream, with its commitment."""

    def __init__(self, material: bytes):
        self.key, self.base, self.commitment = material[:32], material[32:44], material[44:76]
        self._fixed = self.base[:4]
        self._number = int.from_bytes(self.base[4:], "big")
        self._gcm = AESGCM(self.key)

    def __repr__(self) -> str:
        return "FrameKey(..)"

    def check(self, commitment: bytes) -> None:
        """Compares the commitment before decryption; separates a wrong key from changed bytes."""
        if not hmac.compare_digest(self.commitment, commitment):
            raise Refused("it was sealed with another key")

    def nonce(self, seq: int) -> bytes:
        """Returns the base nonce with the sequence number in its last eight bytes, by XOR."""
        return self._fixed + (self._number ^ seq).to_bytes(8, "big")

    def seal(self, seq: int, header: bytes, text: bytes) -> bytes:
        """Returns the header and the ciphertext with its tag."""
        return header + self._gcm.encrypt(self.nonce(seq), text, header)

    def open(self, seq: int, header_length: int, frame: bytes) -> bytes:
        """Returns the plaintext of a frame."""
        try:
            header, sealed = frame[:header_length], frame[header_length:]
            return self._gcm.decrypt(self.nonce(seq), sealed, header)
        except (InvalidTag, ValueError, OverflowError) as error:
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
    """Derives the key of one control frame."""
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
