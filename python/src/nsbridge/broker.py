"""Interface of the client to its broker, and the messages that it publishes."""

from __future__ import annotations

import enum
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

from .constants import (
    CONTROL_EXCHANGE,
    EPOCH_HEADER,
    KEY_ID_HEADER,
    MODEL_HEADER,
    TRACE_BEFORE_HEADER,
    TRACE_HEADER,
)
from .frames import RequestHead
from .merge import Copy

Take = Callable[[bytes, "str | None", "str | None"], None]
"""Receiver of a message of the reply queue: frame, `reply_to` and `traceparent`."""


class Answer(enum.Enum):
    """Broker's answer to a published message."""

    TAKEN = "taken"
    RETURNED = "returned"
    """No queue is bound to the routing key."""
    REFUSED = "refused"
    """The queue is full."""


@dataclass(frozen=True)
class Message:
    """Message to publish."""

    exchange: str
    key: str
    body: bytes = field(repr=False)
    correlation_id: str
    mandatory: bool = False
    persistent: bool = False
    message_id: str | None = None
    reply_to: str | None = None
    expires_at_ms: int | None = None
    headers: dict[str, Any] = field(default_factory=dict)

    def expiration(self) -> str | None:
        """Returns the milliseconds that are left, as AMQP has them."""
        if self.expires_at_ms is None:
            return None
        return str(max(1, self.expires_at_ms - int(time.time() * 1000)))


class Watcher(Protocol):
    """Part of the client that the broker tells of messages and of its connection."""

    def take(self, frame: bytes, reply_to: str | None, span: str | None) -> None:
        """Processes a message of the reply queue, which is acked afterwards."""

    def disconnected(self) -> None:
        """Records that no replies can be received."""

    def listening(self, lost: bool) -> None:
        """Records that replies can be received again; `lost` if the reply queue was gone."""

    def rename(self) -> str:
        """Draws another name for the reply queue, for this and later requests, and returns it."""
        ...


class Broker(Protocol):
    """Broker with one reply queue."""

    async def connect(self, queue: str, watcher: Watcher) -> None:
        """Declares and consumes the reply queue, and keeps doing so after a lost connection."""

    async def publish(self, message: Message) -> Answer:
        """Publishes a message and waits for the answer. Raises `BrokerError` without one."""
        ...

    async def close(self) -> None:
        """Deletes the reply queue and ends the connections."""


def request_message(
    head: RequestHead,
    copy: Copy,
    reply_to: str,
    *,
    bulk: bool,
    epoch: int,
    trace: str,
    before: str | None,
) -> Message:
    """Returns the message of a copy of a request. `epoch` counts the copies before it."""
    headers: dict[str, Any] = {
        MODEL_HEADER: head.model,
        KEY_ID_HEADER: head.key_id,
        TRACE_HEADER: trace,
    }
    if before is not None:
        headers[TRACE_BEFORE_HEADER] = before
    if epoch:  # then its worker waits for the pieces that are here
        headers[EPOCH_HEADER] = epoch
    name = str(uuid.UUID(bytes=head.id))
    return Message(
        exchange="",
        key=f"nsbridge.{head.model}.bulk" if bulk else f"nsbridge.{head.model}",
        body=copy.frame,
        correlation_id=name,
        mandatory=True,
        persistent=True,
        message_id=name,
        reply_to=reply_to,
        expires_at_ms=head.expires_at_ms,
        headers=headers,
    )


def control_message(request_id: bytes, key: str, frame: bytes, before: str | None) -> Message:
    """Returns the message of a control frame."""
    headers = {} if before is None else {TRACE_BEFORE_HEADER: before}
    name = str(uuid.UUID(bytes=request_id))
    return Message(CONTROL_EXCHANGE, key, frame, name, headers=headers)
