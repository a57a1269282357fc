"""Tests of lost connections and lost reply queues, on a real RabbitMQ with a real worker."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import unittest
from unittest import mock

import pika

import nsbridge
from nsbridge import Client, amqp
from place import Place

BEAR = "Once a bear"
LONG = {"seed": 7, "max_tokens": 900, "ignore_eos": True}


class Proxy:
    """TCP proxy before the broker, which cuts its connections."""

    def __init__(self, url: str):
        user, _, rest = url.partition("@")
        address, _, vhost = rest.partition("/")
        host, _, port = address.partition(":")
        self._broker = host, int(port or 5672)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"{user}@127.0.0.1:{self._listener.getsockname()[1]}/{vhost}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                theirs = socket.create_connection(self._broker)
                self._open += [ours, theirs]
                for one, other in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> int:
        """Cuts all connections; returns their number."""
        cut, self._open = self._open, []
        for end in cut:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        return len(cut) // 2

    def close(self) -> None:
        self._listener.close()
        self.cut()


class Losses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Place()
        cls.addClassCleanup(cls.place.close)
        cls.place.worker()
        with Client(cls.place.url, cls.place.keys) as client:
            cls.expected = client.text(cls.place.model, BEAR, **LONG).read()

    def test_a_reply_goes_on_after_a_cut(self):
        proxy = Proxy(self.place.url)
        self.addCleanup(proxy.close)
        with Client(proxy.url, self.place.keys) as client:
            reply, text, cuts = client.text(self.place.model, BEAR, **LONG), "", 0
            for number, piece in enumerate(reply):
                text += str(piece)
                if number in (5, 200):
                    cuts += proxy.cut()
            self.assertEqual(text, self.expected)
            self.assertGreaterEqual(cuts, 3)
            self.assertEqual((reply.copies, reply.restarts), (1, 0), "its queue was still there")
            self.assertEqual(client.text(self.place.model, BEAR, **LONG).read(), self.expected)

    def test_a_reply_goes_on_over_another_node_when_its_own_is_gone(self):
        nodes = [Proxy(self.place.url) for _ in range(2)]
        for node in nodes:
            self.addCleanup(node.close)
        gone = "amqp://127.0.0.1:1"
        with Client(f"{nodes[0].url},{gone},{nodes[1].url}", self.place.keys) as client:
            reply, text = client.text(self.place.model, BEAR, **LONG), ""
            for number, piece in enumerate(reply):
                text += str(piece)
                if number == 5:
                    for node in nodes:
                        if node._open:
                            node.close()
                            break
            self.assertEqual(text, self.expected)
            self.assertEqual((reply.copies, reply.restarts), (1, 0), "its queue was still there")

    def test_a_request_is_enqueued_again_when_the_reply_queue_was_deleted(self):
        deleted = threading.Event()

        def delete(consumer) -> None:
            """Deletes the queue once frames wait in it."""
            other = pika.BlockingConnection(consumer.broker.nodes.current)
            channel = other.channel()
            while channel.queue_declare(consumer.queue, passive=True).method.message_count < 3:
                time.sleep(0.01)
            channel.queue_delete(consumer.queue)
            other.close()
            deleted.set()

        taken, on_message = 0, amqp.Consumer._on_message

        def take(consumer, *message) -> None:
            nonlocal taken
            taken += 1
            on_message(consumer, *message)
            if taken == 2:
                delete(consumer)

        with (
            mock.patch.object(amqp, "PREFETCH", 1),
            mock.patch.object(amqp.Consumer, "_on_message", take),
            Client(self.place.url, self.place.keys) as client,
        ):
            text, events = "", []
            for event in client.text(self.place.model, BEAR, **LONG).events():
                if isinstance(event, nsbridge.Piece):
                    text += str(event.value)
                else:
                    events.append(event)
        self.assertTrue(deleted.is_set())
        self.assertEqual(text, self.expected)
        self.assertIn(nsbridge.EnqueuedAgain(2), events)
        self.assertFalse([event for event in events if isinstance(event, nsbridge.Restart)])


if __name__ == "__main__":
    unittest.main()
