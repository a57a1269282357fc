"""A request before it is sealed, and the state from which another client continues it."""

from __future__ import annotations

import json
import secrets
import time
import uuid
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Callable

from .constants import MAX_SECONDS
from .contents import is_count, is_hex, is_model, is_revision, is_tenant
from .errors import Deadline, InvalidRequest
from .frames import uuid7
from .merge import text_replay_key


@dataclass(frozen=True)
class ResumePoint:
    """State of a request, from which `reattach` continues it, often in another process.

    `to_json` and `from_json` store it. It contains the text of the reply: store it as you store
    prompts. Without pieces, the reply starts over with equal pieces.
    """

    id: str
    seed: int
    created_at_ms: int
    expires_at_ms: int
    clients: int = 1
    """Number of clients that submitted the request before the next one."""
    fingerprint: str | None = None
    pieces: list[bytes] = field(default_factory=list, repr=False)

    @classmethod
    def new(cls, *, timeout: float = 300, seed: int | None = None) -> ResumePoint:
        """Returns the state of a request that is not submitted yet.

        A program that stores it first and submits by `reattach` has one id, one seed and one time
        limit for the request, however often it is interrupted.
        """
        if not 0 < timeout <= MAX_SECONDS:
            raise InvalidRequest(f"the timeout is {timeout} s: at most {MAX_SECONDS} s")
        if seed is not None and not 0 <= seed < 1 << 64:
            raise InvalidRequest("the seed is a whole number from 0 to 2^64 - 1")
        now = int(time.time() * 1000)
        seed = secrets.randbits(53) if seed is None else seed
        name = str(uuid.UUID(bytes=uuid7(now)))
        return cls(name, seed, now, now + int(timeout * 1000), clients=0)

    def to_json(self) -> str:
        """Returns the state as JSON."""
        pieces = [piece.hex() for piece in self.pieces]
        return json.dumps({**self.__dict__, "pieces": pieces})

    @classmethod
    def from_json(cls, text: str) -> ResumePoint:
        """Reads the state from JSON."""
        try:
            fields = json.loads(text)
            fields["pieces"] = [bytes.fromhex(piece) for piece in fields["pieces"]]
            return cls(**fields)
        except (ValueError, TypeError, KeyError):
            raise InvalidRequest("the stored state is no resume point") from None


@dataclass(frozen=True)
class Request:
    """Request with everything that its copies share."""

    model: str
    input: Any = field(repr=False)
    tenant: str
    seed: int | None = None
    revision: str | None = None
    bulk: bool = False
    timeout: float = 300
    id: str | None = None
    trace: str | None = None
    point: ResumePoint | None = field(default=None, repr=False)
    replay_key: Callable[[bytes], bytes] = text_replay_key

    def check(self) -> None:
        """Raises `InvalidRequest` if a field cannot be sealed."""
        if not is_model(self.model):
            raise InvalidRequest("a model's name has 1 to 100 letters, digits, `.`, `_` and `-`")
        if not is_tenant(self.tenant):
            raise InvalidRequest("a tenant has 1 to 255 bytes without control characters")
        if self.seed is not None and not is_count(self.seed):
            raise InvalidRequest("the seed is a whole number from 0 to 2^64 - 1")
        if not isinstance(self.timeout, Real) or not 0 < self.timeout <= MAX_SECONDS:
            raise InvalidRequest(f"the timeout is a number of seconds up to {MAX_SECONDS}")
        if self.revision is not None and not is_revision(self.revision):
            raise InvalidRequest("a revision has 1 to 100 letters, digits, `.`, `_` and `-`")
        if self.point is not None and self.point.expires_at_ms <= int(time.time() * 1000):
            raise Deadline("the request has expired", pieces=len(self.point.pieces))
        if self.point is not None:
            asked = self.point.expires_at_ms - self.point.created_at_ms
            if not 0 < asked <= MAX_SECONDS * 1000:
                raise InvalidRequest(f"a request has at most {MAX_SECONDS} s")
            if not 0 <= self.point.seed < 1 << 64:
                raise InvalidRequest("the seed is a whole number from 0 to 2^64 - 1")
        if self.point is not None and self.point.fingerprint is not None:
            if not is_hex(self.point.fingerprint):
                raise InvalidRequest("a fingerprint has 32 hex digits")

    def begin(self) -> ResumePoint:
        """Returns id, seed and times of the request: those of its first submission, or new ones."""
        self.check()
        if self.point is not None:
            return replace(self.point, clients=max(self.point.clients, 1))
        point = ResumePoint.new(timeout=self.timeout, seed=self.seed)
        if self.id is None:
            return point
        try:
            return replace(point, id=str(uuid.UUID(self.id)))
        except ValueError:
            raise InvalidRequest("the id of a request is a UUID") from None

    def content(self, seed: int) -> bytes:
        """Returns the content that is sealed."""
        asked: dict[str, Any] = {"seed": seed, "input": self.input}
        if self.revision is not None:
            asked["revision"] = self.revision
        try:
            return json.dumps(asked, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            kind = type(error).__name__
            raise InvalidRequest(f"the input cannot be written as JSON ({kind})") from None


def traceparent(given: str | None) -> str:
    """Returns the caller's span (W3C Trace Context), or the root of a new trace."""
    if given is not None:
        return given
    return f"00-{secrets.randbits(128) | 1:032x}-{secrets.randbits(64) | 1:016x}-00"
