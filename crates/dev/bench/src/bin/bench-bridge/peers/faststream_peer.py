"""FastStream as a peer of the bench: a worker process, and a requester that measures the time.

    python faststream_peer.py URL

Orders come as lines of JSON on standard input; the answer to each is one line.
"""

import asyncio
import json
import subprocess
import sys
import time
import uuid

from faststream import FastStream
from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitMessage, RabbitQueue

STREAMS = 16
PREFETCH = 512


def jobs(name: str) -> RabbitQueue:
    arguments = {"x-expires": 60_000}
    return RabbitQueue(name, queue_type=QueueType.QUORUM, durable=True, arguments=arguments)


async def work(url: str, name: str) -> None:
    broker = RabbitBroker(url, default_channel=Channel(prefetch_count=STREAMS), logger=None)

    @broker.subscriber(jobs(name), no_reply=True)
    async def handle(order: dict, message: RabbitMessage) -> None:
        for _ in range(order["pieces"]):
            piece = "x" * order["bytes"]
            await broker.publish(piece, message.reply_to, correlation_id=message.correlation_id)

    await FastStream(broker, logger=None).run()


class Requester:
    def __init__(self, url: str, name: str):
        self.jobs, self.replies = jobs(name), f"{name}.replies"
        self.pieces: dict[str, asyncio.Queue] = {}
        channel = Channel(prefetch_count=PREFETCH)
        self.broker = RabbitBroker(url, default_channel=channel, logger=None)
        queue = RabbitQueue(self.replies, exclusive=True)

        @self.broker.subscriber(queue)
        async def take(piece: str, message: RabbitMessage) -> None:
            self.pieces[message.correlation_id].put_nowait(piece)

    async def ask(self, pieces: int, size: int) -> float:
        """Requests this many pieces and receives all; returns the time of the first one."""
        request = uuid.uuid4().hex
        inbox = self.pieces[request] = asyncio.Queue()
        order = {"pieces": pieces, "bytes": size}
        await self.broker.publish(
            order, self.jobs, reply_to=self.replies, correlation_id=request, persist=True
        )
        await inbox.get()
        first = time.perf_counter()
        for _ in range(pieces - 1):
            await inbox.get()
        del self.pieces[request]
        return first

    async def do(self, order: dict) -> dict:
        started = time.perf_counter()
        if order["do"] == "chunks":
            asked = (self.ask(order["chunks"], order["bytes"]) for _ in range(order["streams"]))
            await asyncio.gather(*asked)
            count = order["streams"] * order["chunks"]
            return {"per_s": count / (time.perf_counter() - started)}
        times = []
        for _ in range(order["requests"]):
            started = time.perf_counter()
            times.append((await self.ask(1, order["bytes"]) - started) * 1000)
        return {"ms": times}


async def request(url: str, name: str) -> None:
    requester = Requester(url, name)
    async with requester.broker:
        await requester.broker.start()
        await requester.ask(1, 1)  # waits until the worker is ready
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await requester.do(json.loads(line))), flush=True)


def main(url: str) -> None:
    name = f"bench.faststream.{uuid.uuid4().hex}"
    worker = subprocess.Popen([sys.executable, __file__, url, name], stdin=subprocess.DEVNULL)
    try:
        asyncio.run(declare(url, name))
        asyncio.run(request(url, name))
    finally:
        worker.kill()


async def declare(url: str, name: str) -> None:
    async with RabbitBroker(url, logger=None) as broker:
        await broker.declare_queue(jobs(name))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(work(*sys.argv[1:]))
    else:
        main(sys.argv[1])
