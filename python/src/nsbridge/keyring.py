"""Keys to seal with: the interface of key providers, and the keyring file."""

from __future__ import annotations

import base64
import json
import os
import stat
from dataclasses import dataclass, field
from typing import Any, Protocol

from .errors import KeyringError
from .keys import check_value, tenant_key

FIELDS = {"id", "state", "key", "check", "models", "tenants", "derived"}
STATES = ("primary", "decrypt", "disabled")


@dataclass(frozen=True)
class DataKey:
    """Key of one request. `wrapped` is its form wrapped by AWS KMS; empty for a keyring."""

    id: str
    key: bytes = field(repr=False)
    wrapped: bytes = field(default=b"", repr=False)


class KeyProvider(Protocol):
    """Source of keys for requests. A call may block: clients make it in a thread of its own."""

    def data_key(self, model: str, tenant: str) -> DataKey:
        """Returns a key for a request of this model and tenant."""
        ...


def read_keyring(text: str) -> list[dict[str, Any]]:
    """Returns the entries of a keyring's JSON. No error message quotes the text."""
    try:
        ring = json.loads(text)
        entries = ring["keys"]
        fits = ring["schema"] == 1 and all(isinstance(e["id"], str) for e in entries)
        primaries = [e for e in entries if e["state"] == "primary"]
    except (ValueError, KeyError, TypeError):
        raise KeyringError("the keyring is not schema 1 with exactly one primary key") from None
    fits = fits and all(set(e) <= FIELDS and e["state"] in STATES for e in entries)
    if not fits or len(primaries) != 1:
        raise KeyringError("the keyring is not schema 1 with exactly one primary key")
    for entry in entries:
        try:
            entry["key"] = base64.b64decode(entry["key"], validate=True)
        except (ValueError, KeyError, TypeError):
            entry["key"] = b""
        if len(entry["key"]) != 32:
            raise KeyringError(f"the key `{entry['id']}` of the keyring is not 32 bytes in base64")
        if entry.get("check", check_value(entry["key"])) != check_value(entry["key"]):
            raise KeyringError(
                f"the key `{entry['id']}` does not match its check value: copy it again"
            )
    return list(entries)


def load_keyring(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads a keyring file; refuses one that other users of this machine can read."""
    try:
        with open(path, encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if os.name == "posix":  # other systems have no such modes
                if stat.S_IMODE(status.st_mode) & 0o077:
                    raise KeyringError(f"the keyring {path} can be read by others: chmod 600 it")
                if status.st_uid != os.geteuid():
                    raise KeyringError(f"the keyring {path} belongs to another user")
            return read_keyring(file.read())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise KeyringError(f"cannot use the keyring {path}: {reason}") from error


def sealing_key(entries: list[dict[str, Any]], model: str, tenant: str) -> DataKey:
    """Returns the primary key, or the key derived from it for this model and tenant."""
    entry = next(e for e in entries if e["state"] == "primary")
    for allowed, wanted in ((entry.get("models"), model), (entry.get("tenants"), tenant)):
        if allowed is not None and wanted not in allowed:
            raise KeyringError(f"the key `{entry['id']}` does not serve `{wanted}`")
    if entry.get("derived"):
        return DataKey(entry["id"], tenant_key(entry["key"], tenant, model))
    return DataKey(entry["id"], entry["key"])


class Keyring:
    """Keys from a keyring file, as `nsbridge keys generate` writes it."""

    def __init__(self, path: str | os.PathLike[str]):
        self._entries = load_keyring(path)

    @classmethod
    def of_key(cls, key_id: str, key: bytes) -> Keyring:
        """Returns a keyring of one key of 32 bytes."""
        if len(key) != 32:
            raise KeyringError(f"the key `{key_id}` is not 32 bytes")
        ring = cls.__new__(cls)
        ring._entries = [{"id": key_id, "state": "primary", "key": key}]
        return ring

    def data_key(self, model: str, tenant: str) -> DataKey:
        """Returns a key for a request of this model and tenant."""
        return sealing_key(self._entries, model, tenant)
