"""A worker of the RunPod SDK that streams: a handler that yields is what its documentation shows.

The bench plays RunPod's API at the addresses in the environment.
"""

import runpod


def handler(job):
    order = job["input"]
    for _ in range(order["pieces"]):
        yield "x" * order["bytes"]


runpod.serverless.start({"handler": handler, "concurrency_modifier": lambda _: 16})
