"""Asynchronous generator, with an asynchronous `load` and `warm_up`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from nsbridge_handler import AsyncJob, AsyncModel, Models


class Count:
    def __init__(self) -> None:
        self.step = 0

    async def load(self, models: Models) -> None:
        self.step = 1

    async def warm_up(self) -> None:
        await asyncio.sleep(0)

    async def handle(self, input: int, job: AsyncJob) -> AsyncIterator[int]:
        for number in range(len(await job.resumed()), input):
            await asyncio.sleep(0)
            yield number * self.step


class Emitting:
    async def handle(self, input: int, job: AsyncJob) -> int:
        await job.emit(input)
        return input + 1


checked: list[AsyncModel] = [Count(), Emitting()]
