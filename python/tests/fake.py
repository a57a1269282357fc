"""Worker in Python on a real RabbitMQ, for models whose answers a test decides."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pika

from nsbridge.constants import (
    CONTENT_TYPE,
    DATA,
    FINAL_OK,
    OPEN,
    PIECES,
    REPLY_EXCHANGE,
    TRACE_HEADER,
)
from nsbridge.frames import write_pieces
from nsbridge.keys import tenant_key
from worker import ReplySealer, compact, open_request

ARGUMENTS = {
    "x-queue-type": "quorum",
    "x-delivery-limit": 64,
    "x-max-length-bytes": 8589934592,
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "",
    "x-dead-letter-strategy": "at-least-once",
}


class Fake:
    """Worker that answers each input by a function from it to the pieces of the reply."""

    def __init__(self, url: str, model: str, keys: str, answer: Callable[[object], list]):
        self.model, self.answer = model, answer
        self.key = json.loads(Path(keys).read_text())["keys"][0]
        self.requests: list[dict] = []
        """Seed, input, head and `traceparent` of each request."""
        self._parameters = pika.URLParameters(url)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._ready.wait(30):
            raise AssertionError("the worker in Python did not start")

    def _run(self) -> None:
        self._connection = pika.BlockingConnection(self._parameters)
        channel = self._connection.channel()
        queue = f"nsbridge.{self.model}"
        more = {"x-dead-letter-routing-key": f"{queue}.dead"}
        channel.exchange_declare(REPLY_EXCHANGE, "direct", durable=True)
        channel.queue_declare(queue, durable=True, arguments={**ARGUMENTS, **more})
        channel.basic_consume(queue, self._take)
        self._ready.set()
        channel.start_consuming()

    def _take(self, channel, method, properties, body) -> None:
        head, content, root = open_request(body, self.data_key(body))
        asked = json.loads(content)
        span = properties.headers.get(TRACE_HEADER)
        self.requests.append({**asked, "head": head, "trace": span})
        pieces = [
            piece if isinstance(piece, bytes) else compact(piece)
            for piece in self.answer(asked["input"])
        ]
        sealer = ReplySealer(root, head.id, 1, bytes(32))
        opened = {"opened_at_ms": 1, "worker": "fake", "fingerprint": None}
        end = {
            "chunks": 1,
            "pieces": len(pieces),
            "bytes": sum(map(len, pieces)),
            "usage": {"input_tokens": 2, "output_tokens": len(pieces)},
        }
        frames = [
            sealer.seal(OPEN, compact(opened)),
            sealer.seal(DATA, write_pieces(0, pieces), PIECES),
            sealer.seal(FINAL_OK, compact(end)),
        ]
        for frame in frames:
            sent = pika.BasicProperties(
                content_type=CONTENT_TYPE, correlation_id=properties.correlation_id
            )
            channel.basic_publish(REPLY_EXCHANGE, properties.reply_to, frame, sent)
        channel.basic_ack(method.delivery_tag)

    def data_key(self, frame: bytes) -> bytes:
        """Returns the key of a request."""
        key = base64.b64decode(self.key["key"])
        if not self.key.get("derived"):
            return key
        at, names = 72, []
        for _ in range(2):
            names.append(frame[at + 1 : at + 1 + frame[at]].decode())
            at += 1 + frame[at]
        return tenant_key(key, names[1], names[0])

    def close(self) -> None:
        self._connection.add_callback_threadsafe(self._connection.close)
        self._thread.join(10)
