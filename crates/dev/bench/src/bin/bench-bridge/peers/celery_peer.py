"""Celery as a peer of the bench: a worker process, and a requester that measures the time.

    python celery_peer.py URL

A Celery task has one result and no stream, so each chunk is a separate task. Orders come as lines
of JSON on standard input; the answer to each is one line.
"""

import json
import os
import subprocess
import sys
import time
import uuid

from celery import Celery

URL, QUEUE = "BENCH_URL", "BENCH_QUEUE"

if __name__ == "__main__":
    os.environ[URL], os.environ[QUEUE] = sys.argv[1], f"bench.celery.{uuid.uuid4().hex}"

app = Celery("celery_peer", broker=os.environ[URL], backend="rpc://")
app.conf.update(
    task_default_queue=os.environ[QUEUE],
    task_default_queue_type="quorum",
    result_expires=60,
    worker_hijack_root_logger=False,
)


@app.task(name="chunk")
def chunk(size: int) -> str:
    return "x" * size


def do(order: dict) -> dict:
    started = time.perf_counter()
    if order["do"] == "chunks":
        count = order["streams"] * order["chunks"]
        for result in [chunk.delay(order["bytes"]) for _ in range(count)]:
            result.get(timeout=120)
        return {"per_s": count / (time.perf_counter() - started)}
    times = []
    for _ in range(order["requests"]):
        started = time.perf_counter()
        chunk.delay(order["bytes"]).get(timeout=120)
        times.append((time.perf_counter() - started) * 1000)
    return {"ms": times}


def main() -> None:
    command = [sys.executable, "-m", "celery", "-A", "celery_peer", "worker", "-l", "ERROR"]
    folder = os.path.dirname(os.path.abspath(__file__))
    worker = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        chunk.delay(1).get(timeout=60)  # waits until the worker is ready
        for line in sys.stdin:
            print(json.dumps(do(json.loads(line))), flush=True)
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
