"""Requests that run in SGLang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Optional, Union

from nsbridge_handler import Fatal

from sglang_api import Output

_Item = Union[Output, Exception, None]


class Running:
    """Requests that end when SGLang ends. SGLang itself lets them wait for its processes, which are gone."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[_Item]] = set()
        self._broken: Optional[str] = None

    def end(self, why: str) -> None:
        """Ends all requests, and those that come later."""
        self._broken = why
        for queue in self._queues:
            queue.put_nowait(Fatal(why))

    async def read(self, outputs: AsyncGenerator[Output, None]) -> AsyncGenerator[Output, None]:
        """Yields the outputs of a request. Closes them at the end, in whatever state they are."""
        queue: asyncio.Queue[_Item] = asyncio.Queue()
        if self._broken is not None:
            queue.put_nowait(Fatal(self._broken))
        self._queues.add(queue)
        reader = asyncio.ensure_future(_read(outputs, queue))
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self._queues.discard(queue)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await outputs.aclose()


async def _read(outputs: AsyncGenerator[Output, None], queue: asyncio.Queue[_Item]) -> None:
    try:
        async for output in outputs:
            queue.put_nowait(output)
        queue.put_nowait(None)
    except Exception as error:
        queue.put_nowait(error)
