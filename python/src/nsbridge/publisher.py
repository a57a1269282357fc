"""Channel that publishes messages and waits for publisher confirms."""

from __future__ import annotations

import asyncio
from typing import Any

import pika

from .broker import Answer, Message
from .channel import Channel, Connection, Nodes, gone, settle
from .constants import CONTENT_TYPE


_FRESH = 1.0  # seconds in which a new channel's messages are believed to be refused by their queue


class Publisher:
    """Channel with publisher confirms, on a connection of its own.

    `stale` is true once the broker has refused a message that it may accept on a new channel:
    RabbitMQ looks up the leader of a quorum queue at the channel's first message, and refuses the
    channel's messages while the node of a leader that it found then is down.
    """

    def __init__(self, connection: Connection, channel: Channel):
        self.connection, self.channel = connection, channel
        self.stale = False
        self._believed_until = asyncio.get_running_loop().time() + _FRESH
        self._published = 0
        self._unanswered: dict[int, tuple[Message, asyncio.Future[Answer]]] = {}
        self._returned: set[bytes] = set()  # bodies; the confirm follows at once

    @classmethod
    async def open(cls, nodes: Nodes) -> Publisher:
        """Connects, and opens a channel with publisher confirms."""
        connection = await nodes.connect()
        try:
            channel = await connection.channel()
            publisher = cls(connection, channel)
            channel.raw.add_on_return_callback(publisher._on_return)
            channel.raw.add_on_close_callback(publisher._on_close)
            await channel.call("confirm_delivery", ack_nack_callback=publisher._on_confirm)
        except BaseException:
            await connection.close()
            raise
        return publisher

    async def publish(self, message: Message) -> Answer:
        """Publishes a message. Raises `Gone` if the channel is lost before the answer."""
        properties = pika.BasicProperties(
            content_type=CONTENT_TYPE,
            delivery_mode=2 if message.persistent else 1,
            message_id=message.message_id,
            correlation_id=message.correlation_id,
            reply_to=message.reply_to,
            expiration=message.expiration(),
            headers=message.headers or None,
        )
        self.channel.send(
            "basic_publish",
            message.exchange,
            message.key,
            message.body,
            properties,
            mandatory=message.mandatory,
        )
        self._published += 1
        tag = self._published
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._unanswered[tag] = message, answer
        # The time of publishing counts: a slow refusal on a new channel is believed too.
        believed = answer.get_loop().time() < self._believed_until
        answered = await answer
        self.stale |= answered is Answer.REFUSED and not believed
        return answered

    def _on_return(self, _channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
        self._returned.add(body)

    def _on_confirm(self, frame: Any) -> None:
        method, tags = frame.method, [frame.method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self._unanswered if tag <= method.delivery_tag]
        taken = type(method).__name__ == "Ack"
        for tag in tags:
            message, answer = self._unanswered.pop(tag, (None, None))
            if message is None or answer is None:
                continue
            if message.body in self._returned:
                self._returned.discard(message.body)
                settle(answer, Answer.RETURNED)
            else:
                settle(answer, Answer.TAKEN if taken else Answer.REFUSED)

    def _on_close(self, _channel: Any, error: Any) -> None:
        unanswered, self._unanswered = self._unanswered, {}
        for _, answer in unanswered.values():
            if not answer.done():
                answer.set_exception(gone(error))

    async def close_when_answered(self) -> None:
        """Closes the connection once all messages are answered."""
        answers = [answer for _, answer in self._unanswered.values()]
        if answers:
            await asyncio.wait(answers)
        await self.close()

    async def close(self) -> None:
        """Closes the connection."""
        await self.connection.close()
