"""Speed of the client on one core, as JSON: `python bench.py [--broker URL]`.

`open_frames_per_s` opens and merges frames of one piece each; `open_pieces_per_s` frames of 16
pieces, as a worker sends them when tokens come faster than frames. `seal_requests_per_s` seals
requests of 1 KiB. `decode_pieces_per_s` makes objects of pieces. `deliver_frames_per_s` takes
frames through the router to a caller in asyncio, without a broker. Each figure is the best of five
runs. With a broker, `rabbitmq_frames_per_s` reads frames of one piece from RabbitMQ with the
blocking client, while another process publishes them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import secrets
import struct
import subprocess
import sys
import time
from collections.abc import Callable

import cryptography
import pika

import nsbridge
from nsbridge.broker import Answer, Message, Watcher
from nsbridge.constants import DATA, FINAL_OK, OPEN, PIECES, PLAIN, REPLY_EXCHANGE, SUITE, VERSION
from nsbridge.frames import RequestHead, pad, seal_request, write_pieces
from nsbridge.keys import reply_keys, request_keys
from nsbridge.merge import Merge

KEY, ID, ROOT = bytes(range(32)), bytes(range(16)), bytes(range(32))


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def stream(root: bytes, request_id: bytes, frames: int, per_frame: int) -> list[bytes]:
    """Returns the frames of a whole reply, sealed as a worker seals them."""
    salt = secrets.token_bytes(32)
    keys, stream_id = reply_keys(root, salt, request_id, 1)
    pieces = [compact({"token": n % 30_000, "text": f" w{n}"}) for n in range(frames * per_frame)]
    opened = compact({"opened_at_ms": 1, "worker": "w", "fingerprint": "00" * 16})
    contents = [(OPEN, PLAIN, opened)]
    for first in range(0, len(pieces), per_frame):
        listed = write_pieces(first, pieces[first : first + per_frame])
        contents.append((DATA, PIECES, listed))
    end = {"chunks": frames, "pieces": len(pieces), "bytes": sum(map(len, pieces))}
    contents.append((FINAL_OK, PLAIN, compact(end)))
    sealed = []
    for seq, (kind, content_type, content) in enumerate(contents):
        header = b"NSBR" + bytes([VERSION, SUITE, kind, 0]) + request_id + stream_id
        header += struct.pack(">Q", seq)
        header += salt + struct.pack(">I", 1) + keys.commitment if kind == OPEN else b""
        sealed.append(keys.seal(seq, header, pad(content_type, content)))
    return sealed


def rate(count: int, work: Callable[[], None]) -> int:
    """Returns the best of five runs, in units a second."""
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        work()
        best = max(best, count / (time.perf_counter() - start))
    return round(best)


def open_frames(frames: int, per_frame: int) -> int:
    """Measures opening and merging."""
    sealed = stream(ROOT, ID, frames, per_frame)

    def work() -> None:
        merge = Merge(ID, [ROOT])
        kinds = [event.kind for frame in sealed for event in merge.feed(frame, "control")]
        assert kinds[-1] == "done" and len(merge.pieces) == frames * per_frame

    return rate(frames, work)


def seal_requests(count: int) -> int:
    """Measures the sealing of requests."""
    head = RequestHead(ID, 1, 2, "tale-7m", "acme", "dev")
    content = compact({"seed": 7, "input": {"prompt": "x" * 1024}})

    def work() -> None:
        for _ in range(count):
            seal_request(KEY, secrets.token_bytes(32), head, content)

    return rate(count, work)


def decode_pieces(count: int) -> int:
    """Measures the decoding of pieces."""
    pieces = [compact({"token": n % 30_000, "text": f" w{n}"}) for n in range(count)]

    def work() -> None:
        for piece in pieces:
            nsbridge.TextPiece.read(piece)

    return rate(count, work)


def reply_root(frame: bytes) -> bytes:
    """Returns the reply root of a request that was sealed with `KEY`."""
    at = 72
    for _ in range(3):
        at += 1 + frame[at]
    return request_keys(KEY, frame[24:56], frame[: at + 2])[1]


class Loopback:
    """Broker that answers each request with a prepared number of frames."""

    def __init__(self, frames: int):
        self.frames = frames

    async def connect(self, queue: str, watcher: Watcher) -> None:
        self.watcher = watcher
        watcher.listening(False)

    async def publish(self, message: Message) -> Answer:
        if not message.exchange:
            frame = message.body
            self.sealed = stream(reply_root(frame), frame[8:24], self.frames, 1)
        return Answer.TAKEN

    async def close(self) -> None:
        pass


async def deliver_once(frames: int) -> float:
    """Returns the seconds from the first frame to the caller's last piece."""
    broker = Loopback(frames)
    keys = nsbridge.Keyring.of_key("dev", KEY)
    async with nsbridge.AsyncClient(broker, keys) as client:
        reply = await client.text("m", "a bear")
        start = time.perf_counter()

        async def feed() -> None:
            for number, frame in enumerate(broker.sealed):
                broker.watcher.take(frame, None, None)
                if number % 64 == 0:  # as a socket delivers them
                    await asyncio.sleep(0)

        task = asyncio.create_task(feed())
        pieces = [piece async for piece in reply]
        await task
        assert len(pieces) == frames
        return time.perf_counter() - start


def deliver_frames(frames: int) -> int:
    """Measures the way from the reply queue's messages to the caller."""
    return round(frames / min(asyncio.run(deliver_once(frames)) for _ in range(5)))


def publish(url: str, model: str, frames: int) -> None:
    """Answers one request after another, as a worker whose tokens are all there."""
    if hasattr(os, "sched_setaffinity"):  # not on the core that is measured alone
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(f"nsbridge.{model}", auto_delete=True)
    print("ready", flush=True)
    for method, properties, body in channel.consume(f"nsbridge.{model}", auto_ack=True):
        if method is None or properties is None or body is None:
            continue
        sent = pika.BasicProperties(delivery_mode=1)
        for frame in stream(reply_root(body), body[8:24], frames, 1):
            channel.basic_publish(REPLY_EXCHANGE, str(properties.reply_to), frame, sent)


def through_rabbitmq(url: str, frames: int) -> int:
    """Measures the way from RabbitMQ to a loop over a reply of the blocking client."""
    model = f"bench-{secrets.token_hex(8)}"
    command = [sys.executable, __file__, "--broker", url, "--answer", model]
    worker = subprocess.Popen([*command, "--frames", str(frames)], stdout=subprocess.PIPE)
    try:
        assert worker.stdout is not None and worker.stdout.readline()
        with nsbridge.Client(url, nsbridge.Keyring.of_key("dev", KEY)) as client:
            best = float("inf")
            for _ in range(5):
                reply = client.text(model, "a bear")
                next(reply)
                start = time.perf_counter()
                assert sum(1 for _ in reply) == frames - 1
                best = min(best, time.perf_counter() - start)
    finally:
        worker.kill()
        worker.wait()
    return round((frames - 1) / best)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the client's core on one core.")
    parser.add_argument("--frames", type=int, default=5000)
    parser.add_argument("--at-least", type=int, help="fail below so many a second")
    parser.add_argument("--broker", metavar="URL", help="measure through this RabbitMQ too")
    parser.add_argument("--answer", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        publish(args.broker, args.answer, args.frames)
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    figures = {
        "open_frames_per_s": open_frames(args.frames, 1),
        "open_pieces_per_s": 16 * open_frames(args.frames // 4, 16),
        "seal_requests_per_s": seal_requests(args.frames),
        "decode_pieces_per_s": decode_pieces(args.frames),
        "deliver_frames_per_s": deliver_frames(args.frames),
    }
    if args.broker:
        figures["rabbitmq_frames_per_s"] = through_rabbitmq(args.broker, args.frames)
    machine = {"python": platform.python_version(), "cryptography": cryptography.__version__}
    print(json.dumps({**figures, **machine}))
    if args.at_least and min(figures.values()) < args.at_least:
        sys.exit(f"below {args.at_least} a second")


if __name__ == "__main__":
    main()
