"""Client of nsbridge: sealed requests to models behind RabbitMQ, and their streamed replies.

`Client` blocks and works from several threads; `AsyncClient` is for asyncio. `nsbridge.combine` has
requests in steps, `nsbridge.openai` the shapes of OpenAI's client, `nsbridge.kms` keys of AWS KMS.
"""

from .aio import AsyncClient
from .client import Client, Reply
from .errors import (
    BadInput,
    BrokerError,
    Cancelled,
    ClockSkew,
    Closed,
    Deadline,
    Error,
    Expired,
    Failed,
    Internal,
    InvalidRequest,
    KeyDenied,
    KeyringError,
    KeyScope,
    Malformed,
    ModelFailed,
    NoSuchModel,
    Oversized,
    Poison,
    QueueFull,
    ReplyTooLarge,
    Restarted,
    Tampered,
    Truncated,
    UnexpectedPiece,
    UnknownKey,
    UnsupportedVersion,
    WrongKey,
    WrongModel,
    WrongRevision,
)
from .events import Done, EnqueuedAgain, Event, Hint, Moved, Opened, Piece, Restart, Waiting
from .inquiry import Timing
from .keyring import DataKey, KeyProvider, Keyring
from .reply import AsyncReply
from .request import ResumePoint
from .text import Embeddings, Result, Scores, Summary, TextPiece, TokenLogprob, Usage

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncReply",
    "BadInput",
    "BrokerError",
    "Cancelled",
    "Client",
    "ClockSkew",
    "Closed",
    "DataKey",
    "Deadline",
    "Done",
    "Embeddings",
    "EnqueuedAgain",
    "Error",
    "Event",
    "Expired",
    "Failed",
    "Hint",
    "Internal",
    "InvalidRequest",
    "KeyDenied",
    "KeyProvider",
    "KeyScope",
    "Keyring",
    "KeyringError",
    "Malformed",
    "ModelFailed",
    "Moved",
    "NoSuchModel",
    "Opened",
    "Oversized",
    "Piece",
    "Poison",
    "QueueFull",
    "Reply",
    "ReplyTooLarge",
    "Restart",
    "Restarted",
    "Result",
    "ResumePoint",
    "Scores",
    "Summary",
    "Tampered",
    "TextPiece",
    "Timing",
    "TokenLogprob",
    "Truncated",
    "UnexpectedPiece",
    "UnknownKey",
    "UnsupportedVersion",
    "Usage",
    "Waiting",
    "WrongKey",
    "WrongModel",
    "WrongRevision",
]
