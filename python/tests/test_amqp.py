"""Tests of the order of calls to RabbitMQ, with scripted failures."""

from __future__ import annotations

import asyncio
import unittest
from unittest import mock

from nsbridge import amqp, channel, publisher
from nsbridge.amqp import Amqp
from nsbridge.broker import Answer, Message
from nsbridge.channel import Gone
from nsbridge.inquiry import Timing


class Raw:
    """Channel of pika that takes every call."""

    def __init__(self, wire):
        self.wire, self.lost = wire, []

    def add_on_cancel_callback(self, callback):
        self.wire.cancels.append(callback)

    def add_on_close_callback(self, callback):
        self.lost.append(callback)

    def add_on_return_callback(self, _callback):
        """Registers no callback: every queue is there."""


class Wire:
    """Broker's end of the connections, with scripted failures."""

    def __init__(self, **fails: list[int | None]):
        self.calls: list[str] = []
        self.fails, self.cancels = fails, []
        self.deliver = None
        self.answers: list[str] = []  # of the broker to published messages

    async def open(self, _parameters):
        return self

    async def channel(self):
        channel = mock.Mock(raw=Raw(self))
        channel.call, channel.send = self.call, self.send
        return channel

    async def call(self, method, *arguments, **options):
        self.calls.append(method)
        if self.fails.get(method):
            code = self.fails[method].pop(0)
            if code is None:
                await asyncio.Future()  # no answer
            raise Gone("scripted", code)
        if method == "basic_consume":
            self.deliver = options["on_message_callback"]
        if method == "confirm_delivery":
            self.confirm, self.published = options["ack_nack_callback"], 0

    def send(self, method, *arguments, **options):
        self.calls.append(f"{method} {arguments[0]} {options}")
        if method == "basic_publish":
            self.published += 1
            answer = type(self.answers.pop(0), (), {})()
            answer.multiple, answer.delivery_tag = False, self.published
            asyncio.get_running_loop().call_soon(self.confirm, mock.Mock(method=answer))

    async def close(self):
        self.calls.append("close")


class Watcher:
    """Client's side of the connections."""

    def __init__(self):
        self.told: list[object] = []

    def take(self, frame, reply_to, span):
        self.told.append(frame)

    def disconnected(self):
        self.told.append("disconnected")

    def listening(self, lost):
        self.told.append(lost)

    def rename(self):
        return "nsbridge.reply.1"


class Order(unittest.IsolatedAsyncioTestCase):
    """Calls while a reply queue is subscribed to, and again after a loss."""

    async def connect(self, **fails) -> Amqp:
        self.wire, self.watcher = Wire(**fails), Watcher()
        patch = mock.patch.object(channel, "Connection", self.wire)
        patch.start()
        self.addCleanup(patch.stop)
        broker = Amqp("amqp://localhost", Timing(pause=0.001, longest_pause=0.001))
        await broker.connect("nsbridge.reply.0", self.watcher)
        self.addAsyncCleanup(broker.close)
        return broker

    async def lose(self) -> None:
        """Lets the broker cancel the consumer, and waits until the queue is subscribed to again."""
        told = len(self.watcher.told)
        self.wire.calls.clear()
        self.wire.cancels[-1](None)
        while len(self.watcher.told) < told + 2:
            await asyncio.sleep(0.001)

    def queue_calls(self) -> list[str]:
        return [c for c in self.wire.calls if c in ("basic_consume", "queue_declare", "queue_bind")]

    async def test_a_reply_queue_that_is_there_is_subscribed_to_before_all_else(self):
        await self.connect()
        self.assertEqual(self.queue_calls(), ["basic_consume", "queue_declare", "queue_bind"])
        await self.lose()
        self.assertEqual(self.queue_calls(), ["basic_consume", "queue_declare", "queue_bind"])
        self.assertEqual(self.watcher.told, [False, "disconnected", False])

    async def test_a_new_queue_is_no_lost_one(self):
        await self.connect(basic_consume=[404])
        calls = ["basic_consume", "queue_declare", "queue_bind", "basic_consume"]
        self.assertEqual((self.queue_calls(), self.watcher.told), (calls, [False]))
        await self.lose()
        self.assertEqual(self.watcher.told, [False, "disconnected", False])

    async def test_c6_a_lost_reply_queue_is_told_once_though_the_first_try_to_make_it_fails(self):
        for call in ("queue_declare", "queue_bind", "basic_consume"):
            await self.connect()
            self.wire.fails = {"basic_consume": [404]}
            self.wire.fails.setdefault(call, []).append(320)
            await self.lose()
            self.assertEqual(self.watcher.told, [False, "disconnected", True], call)
            await self.lose()
            self.assertEqual(self.watcher.told[3:], ["disconnected", False], call)

    async def test_c6_a_reply_queue_whose_node_is_down_gets_another_name(self):
        broker = await self.connect()
        # The broker keeps the name: the queue can be neither consumed nor declared.
        self.wire.fails = {"basic_consume": [404], "queue_declare": [404]}
        await self.lose()
        self.assertEqual(self.watcher.told, [False, "disconnected", True])
        self.assertEqual(broker._consumer.queue, "nsbridge.reply.1")
        calls = ["basic_consume", "queue_declare", "queue_declare", "queue_bind", "basic_consume"]
        self.assertEqual(self.queue_calls(), calls)
        await self.lose()
        self.assertEqual(self.watcher.told[3:], ["disconnected", False])

    async def test_c6_a_reply_queue_whose_node_does_not_answer_gets_another_name(self):
        broker = await self.connect()
        broker.timing = Timing(pause=0.001, longest_pause=0.001, home_node=0.02)
        # The broker waits a minute for the node that has the queue.
        self.wire.fails = {"basic_consume": [None, 404]}
        await self.lose()
        self.assertEqual(self.watcher.told, [False, "disconnected", True])
        self.assertEqual(broker._consumer.queue, "nsbridge.reply.1")
        calls = ["basic_consume", "basic_consume", "queue_declare", "queue_bind", "basic_consume"]
        self.assertEqual(self.queue_calls(), calls)
        self.assertIn("close", self.wire.calls[: self.wire.calls.index("queue_declare")])

    async def test_exchanges_are_declared_only_if_they_are_missing(self):
        await self.connect(exchange_declare=[404])
        self.assertEqual(self.wire.calls.count("exchange_declare"), 3)

    async def test_a_refusal_that_is_not_a_missing_queue_is_an_error(self):
        with self.assertRaisesRegex(
            amqp.BrokerError, "cannot use the broker at localhost:5672: scripted"
        ):
            await self.connect(queue_bind=[403])
        self.assertEqual(self.wire.calls[-1], "close")

    async def test_a_channel_that_is_not_new_is_not_believed_when_it_refuses(self):
        taken, refused = Answer.TAKEN, Answer.REFUSED
        for fresh, answers, told, channels in (
            (0.0, ["Ack", "Nack", "Ack"], [taken, taken], 2),
            (0.0, ["Ack", "Nack", "Nack"], [taken, refused], 2),
            (60.0, ["Ack", "Nack"], [taken, refused], 1),
        ):
            with mock.patch.object(publisher, "_FRESH", fresh):
                broker = await self.connect()
                self.wire.answers = answers
                message = Message("", "nsbridge.tale-7m", b"sealed", "request")
                self.assertEqual([await broker.publish(message) for _ in told], told)
            self.assertEqual(self.wire.calls.count("confirm_delivery"), channels)
            self.assertEqual(self.wire.answers, [])

    async def test_frames_are_acked_after_use_all_that_came_at_once_together(self):
        await self.connect()
        properties = mock.Mock(reply_to="r", headers=None)
        for tag in (7, 8):
            self.wire.deliver(None, mock.Mock(delivery_tag=tag), properties, b"frame")
        self.assertEqual(self.watcher.told[1:], [b"frame", b"frame"])
        self.assertFalse([c for c in self.wire.calls if "ack" in c])
        await asyncio.sleep(0)
        self.assertEqual(
            [c for c in self.wire.calls if "ack" in c], ["basic_ack 8 {'multiple': True}"]
        )

    async def test_the_reply_queue_is_deleted_at_the_end(self):
        broker = await self.connect()
        await broker.close()
        self.assertEqual(self.wire.calls[-2:], ["queue_delete", "close"])
