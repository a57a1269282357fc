"""Job of a call in this process, which collects the pieces of a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from nsbridge_handler import FinishReason, Usage
from nsbridge_handler.testing import _AsyncJob  # pyright: ignore[reportPrivateUsage]


class Collector(_AsyncJob):
    """Job of one call. `before` are the pieces that the client has."""

    def __init__(
        self,
        *,
        id: str = "00000000-0000-4000-8000-000000000000",
        attempt: int = 1,
        seed: int = 7,
        scope: str = "test",
        before: Sequence[Any] = (),
    ) -> None:
        super().__init__(seed, attempt, "default", before)
        self.id, self.scope, self.submitted_at = id, scope, 1_700_000_000.0
        self.began = asyncio.Event()

    async def emit(self, piece: object) -> None:
        await super().emit(piece)
        self.began.set()
        assert len(self.all) <= (self.answer.most or 0)

    @property
    def all(self) -> list[Any]:
        """Pieces that the client has at the end."""
        return self.answer.pieces

    @property
    def pieces(self) -> list[Any]:
        """Pieces of this attempt."""
        return self.all[len(self.before) if self.asked else 0 :]

    @property
    def reason(self) -> FinishReason:
        return self.answer.reason

    @property
    def usage(self) -> Usage:
        return self.answer.usage

    @property
    def text(self) -> str:
        """Text of the reply."""
        return "".join(piece["text"] for piece in self.all)
