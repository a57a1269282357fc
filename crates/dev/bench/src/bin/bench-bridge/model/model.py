"""Model of the rows of the Python handler: each piece holds the time at which it was made."""

import time


def handle(order, job):
    pause = order["every_ms"] / 1000
    for _ in range(order["pieces"]):
        if pause:
            time.sleep(pause)
        yield ("@%d " % time.monotonic_ns()).ljust(order["bytes"], "x")
