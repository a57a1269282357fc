"""Streaming worker of the RunPod SDK: a handler that yields, as in the SDK's documentation.

The bench serves RunPod's API at the addresses in the environment.
"""

import time

import runpod


def handler(job):
    order = job["input"]
    pause = order["every_ms"] / 1000
    for _ in range(order["pieces"]):
        if pause:
            time.sleep(pause)
        yield ("@%d " % time.monotonic_ns()).ljust(order["bytes"], "x")


runpod.serverless.start({"handler": handler, "concurrency_modifier": lambda _: 16})
