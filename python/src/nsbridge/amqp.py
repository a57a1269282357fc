"""RabbitMQ: one connection for replies and one to publish, both opened again after a loss."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from .broker import Answer, Message, Watcher
from .channel import Channel, Connection, Gone, Nodes, reason
from .constants import (
    CONTROL_EXCHANGE,
    PREFETCH,
    REPLY_EXCHANGE,
    REPLY_QUEUE_ARGUMENTS,
    TRACE_HEADER,
)
from .errors import BrokerError
from .inquiry import Timing
from .publisher import Publisher

NOT_FOUND = 404


class Amqp:
    """Broker at a URL such as `amqp://user:password@host:5672/%2f`. The URLs of several nodes of a cluster are
    separated by commas.

    The broker's tools show the connections as `name replies` and `name requests`.
    """

    def __init__(self, url: str, timing: Timing = Timing(), name: str = "nsbridge client"):
        self.nodes = Nodes(url, f"{name} replies")
        self._publishing = Nodes(url, f"{name} requests")
        self.timing = timing
        self._publisher: Publisher | None = None
        self._opening = asyncio.Lock()
        self._consumer: Consumer | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self._lost = False

    @property
    def where(self) -> str:
        """Host and port of the broker, or of its nodes."""
        return self.nodes.where

    async def connect(self, queue: str, watcher: Watcher) -> None:
        """Consumes the reply queue, and starts a task that consumes it again after a loss."""
        self._queue, self._watcher = queue, watcher
        await self._subscribe()
        self._lost = False  # the queue is new
        watcher.listening(False)
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def _subscribe(self) -> None:
        try:
            self._consumer = await Consumer.open(self)
        except Gone as error:
            raise BrokerError(f"cannot use the broker at {self.where}: {reason(error)}") from error

    async def _keep(self) -> None:
        """Subscribes again after each loss, with growing pauses."""
        while not self._closed:
            assert self._consumer is not None
            await self._consumer.gone()
            self._watcher.disconnected()
            await self._consumer.close()
            pause = self.timing.pause
            while not self._closed:
                try:
                    await self._subscribe()
                    break
                except BrokerError:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, self.timing.longest_pause)
            lost, self._lost = self._lost, False
            if not self._closed:
                self._watcher.listening(lost)

    async def publish(self, message: Message) -> Answer:
        """Publishes a message and waits for the publisher confirm."""
        while True:
            publisher, is_new = await self._open_publisher()
            try:
                answer = await publisher.publish(message)
                if not publisher.stale:
                    return answer
                await self._forget(publisher)
                if answer is not Answer.REFUSED or is_new:
                    return answer
            except Gone as error:
                await self._forget(publisher)
                if is_new:  # a channel from before may have been lost long ago
                    why = f"lost the broker at {self.where}: {reason(error)}"
                    raise BrokerError(why) from error

    async def _forget(self, publisher: Publisher) -> None:
        if self._publisher is publisher:
            self._publisher = None
            await publisher.close_when_answered()

    async def _open_publisher(self) -> tuple[Publisher, bool]:
        async with self._opening:
            if self._closed:
                raise BrokerError("the client was closed")
            if self._publisher is not None:
                return self._publisher, False
            try:
                self._publisher = await Publisher.open(self._publishing)
            except Gone as error:
                why = f"cannot use the broker at {self.where}: {reason(error)}"
                raise BrokerError(why) from error
            return self._publisher, True

    async def close(self) -> None:
        """Deletes the reply queue, which would expire after 15 s otherwise, and disconnects."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._consumer is not None:
            with contextlib.suppress(Gone, asyncio.TimeoutError):
                await asyncio.wait_for(self._consumer.delete(), 2)
            await self._consumer.close()
        if self._publisher is not None:
            await self._publisher.close()


class Consumer:
    """Consumer of the reply queue."""

    def __init__(self, connection: Connection, broker: Amqp):
        self.connection, self.broker, self.queue = connection, broker, broker._queue
        self._watcher = broker._watcher
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._unacked = 0

    @classmethod
    async def open(cls, broker: Amqp) -> Consumer:
        """Connects, and consumes the reply queue."""
        connection = await broker.nodes.connect()
        consumer = cls(connection, broker)
        try:
            await consumer._declare()
        except BaseException:
            await connection.close()
            raise
        return consumer

    async def _declare(self) -> None:
        for exchange in (REPLY_EXCHANGE, CONTROL_EXCHANGE):
            try:  # passive: needs no configure permission if they exist
                channel = await self.connection.channel()
                await channel.call("exchange_declare", exchange, "direct", passive=True)
            except Gone as error:
                if error.code != NOT_FOUND:
                    raise
                channel = await self.connection.channel()
                await channel.call("exchange_declare", exchange, "direct", durable=True)
        try:  # first: a queue with a consumer does not expire
            await asyncio.wait_for(self._subscribe(), self.broker.timing.home_node)
        except asyncio.TimeoutError:
            # RabbitMQ 4.3 waits a minute for the queue's node of a cluster, which is down. The
            # subscription may still come, so that another connection subscribes to the new queue.
            self.broker._lost = True
            self.broker._queue = self._watcher.rename()
            raise Gone("the node of the reply queue is down") from None
        except Gone as error:
            if error.code != NOT_FOUND:
                raise
            self.broker._lost = True  # recorded before it is declared: the next step may fail
            try:
                await self._declare_queue(await self.connection.channel())
            except Gone as error:
                if error.code != NOT_FOUND:
                    raise
                # The queue's node of a cluster is down, and the broker keeps the name for it.
                self.queue = self.broker._queue = self._watcher.rename()
                await self._declare_queue(await self.connection.channel())
            await self._subscribe()
        else:  # an earlier attempt may have failed before the bind
            await self._declare_queue(self.channel)

    async def _declare_queue(self, channel: Channel) -> None:
        arguments = REPLY_QUEUE_ARGUMENTS
        await channel.call("queue_declare", self.queue, durable=True, arguments=arguments)
        await channel.call("queue_bind", self.queue, REPLY_EXCHANGE, routing_key=self.queue)

    async def _subscribe(self) -> None:
        channel = self.channel = await self.connection.channel()
        await channel.call("basic_qos", prefetch_count=PREFETCH)
        # The broker cancels the consumer if the queue is deleted.
        channel.raw.add_on_cancel_callback(lambda _: self._end())
        await channel.call("basic_consume", self.queue, on_message_callback=self._on_message)
        channel.raw.add_on_close_callback(lambda *_: self._end())

    def _end(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    async def gone(self) -> None:
        """Waits until the channel, the connection or the queue is gone."""
        await self._gone

    def _on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        span = (properties.headers or {}).get(TRACE_HEADER)
        self._watcher.take(body, properties.reply_to, span if isinstance(span, str) else None)
        if not self._unacked:  # one ack for all messages that were read at once
            self._loop.call_soon(self._ack)
        self._unacked = method.delivery_tag  # after use: an unacked frame comes again

    def _ack(self) -> None:
        tag, self._unacked = self._unacked, 0
        with contextlib.suppress(Gone):
            self.channel.send("basic_ack", tag, multiple=True)

    async def delete(self) -> None:
        """Deletes the reply queue."""
        await self.channel.call("queue_delete", self.queue)

    async def close(self) -> None:
        """Closes the connection."""
        await self.connection.close()
