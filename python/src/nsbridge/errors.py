"""Errors of a request, as its caller sees them."""

from __future__ import annotations


class Error(Exception):
    """Reason why a request has no complete reply. Its message is one sentence.

    `code` is the error code of the protocol, or None if the error has none.
    """

    code: str | None = None
    is_retryable = False
    """True if the same request may succeed later."""


class InvalidRequest(Error, ValueError):
    """Request that cannot be sealed: an input, a limit or a name that the protocol refuses."""


class KeyringError(Error):
    """Keyring or key that cannot be used for this request."""


class BrokerError(Error):
    """Broker that cannot be reached or used."""

    is_retryable = True


class NoSuchModel(Error):
    """Model without a queue: no worker has ever served it on this broker."""


class QueueFull(Error):
    """Queue of a model that takes no more requests now."""

    is_retryable = True


class Closed(Error):
    """Client that was closed, or a reply that was cancelled by its caller."""


class UnexpectedPiece(Error):
    """Piece of a reply that is of another type than the caller asked for."""


class Restarted(Error):
    """Event of a reply that a plain iteration cannot express: a later attempt differs.

    Of the pieces so far only the first `kept` stand. The reply goes on: a new iteration returns the
    pieces after them. `Reply.events` and the methods that read a whole reply handle this event.
    """

    def __init__(self, kept: int):
        super().__init__(f"a later attempt differs: only the first {kept} pieces stand")
        self.kept = kept


class Failed(Error):
    """Error with which a worker ended the request; `code` has its reason."""

    def __init__(self, message: str, code: str):
        super().__init__(f"{message} ({code})")
        self.message, self.code = message, code


class BadInput(Failed):
    """Input that the handler refused."""


class ModelFailed(Failed):
    """Failure of the model on this request."""


class Cancelled(Failed):
    """Request that its client cancelled."""


class Deadline(Failed):
    """Time limit that passed before the reply was complete.

    `pieces` is the number of pieces that came. `hint` is the last hint of a worker; any publisher
    on the broker can forge it.
    """

    is_retryable = True

    def __init__(
        self, message: str, code: str = "deadline", pieces: int = 0, hint: str | None = None
    ):
        super().__init__(message, code)
        self.pieces, self.hint = pieces, hint


class Truncated(Deadline):
    """Time limit that passed while frames in the middle of the reply were missing."""


class Expired(Failed):
    """Time limit that passed before a worker began."""

    is_retryable = True


class ClockSkew(Failed):
    """Clocks of client and worker that are too far apart."""


class Malformed(Failed):
    """Message that is no request of this protocol."""


class UnsupportedVersion(Failed):
    """Version, suite or key provider that the worker does not support."""


class Oversized(Failed):
    """Request that is larger than a request may be."""


class UnknownKey(Failed):
    """Key id that the worker's keyring does not have."""


class WrongKey(Failed):
    """Key that differs between client and worker under one id."""


class Tampered(Failed):
    """Request whose bytes were changed on the way."""


class WrongModel(Failed):
    """Request for another model than the worker's."""


class KeyScope(Failed):
    """Key that does not serve this model or tenant."""


class Poison(Failed):
    """Request whose workers ended before it returned, in every try."""


class ReplyTooLarge(Failed):
    """Reply or piece above its limit."""


class KeyDenied(Failed):
    """Key that is disabled, not on the worker's list, or refused by its key service."""


class Internal(Failed):
    """Failure inside the worker, or a code that this client does not know."""

    is_retryable = True


class WrongRevision(Failed):
    """Pinned revision that no worker served while the request waited."""


BY_CODE: dict[str, type[Failed]] = {
    "bad-input": BadInput,
    "model-failed": ModelFailed,
    "cancelled": Cancelled,
    "deadline": Deadline,
    "expired": Expired,
    "clock-skew": ClockSkew,
    "malformed": Malformed,
    "unsupported-version": UnsupportedVersion,
    "oversized": Oversized,
    "unknown-key": UnknownKey,
    "wrong-key": WrongKey,
    "tampered": Tampered,
    "wrong-model": WrongModel,
    "key-scope": KeyScope,
    "poison": Poison,
    "reply-too-large": ReplyTooLarge,
    "key-denied": KeyDenied,
    "internal": Internal,
    "wrong-revision": WrongRevision,
}


def failure(code: str, message: str) -> Failed:
    """Returns the error for a code; an unknown code is `internal`."""
    known = code if code in BY_CODE else "internal"
    return BY_CODE[known](message, known)
