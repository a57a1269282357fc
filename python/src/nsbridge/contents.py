"""Contents of frames that are JSON objects."""

from __future__ import annotations

import json
import re
from typing import Any

from .constants import PLAIN, USAGE
from .keys import Refused


def read_json(content_type: int, content: bytes) -> dict[str, Any]:
    """Parses a JSON object; unknown fields are ignored."""
    try:
        value = json.loads(content) if content_type == PLAIN else None
    except (ValueError, RecursionError) as error:
        raise Refused("its content is not JSON") from error
    if not isinstance(value, dict):
        raise Refused("its content is not an object")
    return value


def is_count(value: object) -> bool:
    """Returns True for a whole number below 2^64."""
    return type(value) is int and 0 <= value < 1 << 64


def is_hex(value: object) -> bool:
    """Returns True for 32 hex digits."""
    return isinstance(value, str) and re.fullmatch("[0-9a-fA-F]{32}", value) is not None


def is_revision(value: object) -> bool:
    """Returns True for the name of a revision."""
    pattern = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def read_open(content_type: int, content: bytes) -> dict[str, Any]:
    """Reads the content of an open."""
    body = read_json(content_type, content)
    fits = is_count(body.get("opened_at_ms")) and isinstance(body.get("worker"), str)
    optional = (("fingerprint", is_hex), ("revision", is_revision))
    if not fits or not all(body.get(name) is None or test(body[name]) for name, test in optional):
        raise Refused("a field of the open is missing, or is not what it should be")
    return body


def read_summary(content_type: int, content: bytes) -> dict[str, Any]:
    """Reads the content of a final-ok."""
    body = {"pieces": 0, "finish_reason": "stop", "usage": {}, **read_json(content_type, content)}
    fits = all(is_count(body.get(name)) for name in ("chunks", "bytes", "pieces"))
    fits = fits and isinstance(body["finish_reason"], str) and isinstance(body["usage"], dict)
    if not fits or not all(is_count(body["usage"].get(name, 0)) for name in USAGE):
        raise Refused("a field of the end is missing, or is not what it should be")
    return body


def read_failure(content_type: int, content: bytes) -> dict[str, Any]:
    """Reads the content of a final-error."""
    body = {"chunks": 0, **read_json(content_type, content)}
    fits = isinstance(body.get("code"), str) and isinstance(body.get("message"), str)
    if not fits or not is_count(body["chunks"]):
        raise Refused("a field of the end is missing, or is not what it should be")
    return body
