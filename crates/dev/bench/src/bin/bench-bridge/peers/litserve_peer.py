"""Streaming server of LitServe: an API that yields, as in its documentation.

python litserve_peer.py PORT
"""

import sys
import time

import litserve


class Flood(litserve.LitAPI):
    def setup(self, device):
        pass

    def predict(self, order):
        pause = order["every_ms"] / 1000
        for _ in range(order["pieces"]):
            if pause:
                time.sleep(pause)
            yield ("@%d " % time.monotonic_ns()).ljust(order["bytes"], "x")

    def encode_response(self, pieces):
        yield from pieces


if __name__ == "__main__":
    server = litserve.LitServer(Flood(stream=True), accelerator="cpu", timeout=120)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error"
    )
