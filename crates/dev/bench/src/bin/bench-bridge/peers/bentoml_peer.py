"""Streaming service of BentoML: an asynchronous generator, as in its documentation."""

import asyncio
import time
from typing import AsyncGenerator

import bentoml


@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Flood:
    @bentoml.api(route="/predict")
    async def predict(self, pieces: int, bytes: int, every_ms: int) -> AsyncGenerator[str, None]:
        pause = every_ms / 1000
        for _ in range(pieces):
            if pause:
                await asyncio.sleep(pause)
            yield ("@%d " % time.monotonic_ns()).ljust(bytes, "x")
