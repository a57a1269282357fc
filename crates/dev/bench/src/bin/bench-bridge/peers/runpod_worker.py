"""Streaming worker of the RunPod SDK: a handler that yields, as in the SDK's documentation.

The bench serves RunPod's API at the addresses in the environment.
"""

import runpod


def handler(job):
    order = job["input"]
    for _ in range(order["pieces"]):
        yield "x" * order["bytes"]


runpod.serverless.start({"handler": handler, "concurrency_modifier": lambda _: 16})
