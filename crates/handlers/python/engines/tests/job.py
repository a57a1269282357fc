"""Stand-in for the job of a worker, which collects the pieces of a reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from nsbridge_handler import FinishReason, Usage


@dataclass
class Collector:
    """Job of one call."""

    id: str = "00000000-0000-4000-8000-000000000000"
    seed: int = 7
    attempt: int = 1
    tenant: str = "default"
    scope: str = "test"
    submitted_at: float = 1_700_000_000.0
    deadline: float = 2_000_000_000.0
    before: Sequence[Any] = ()
    pieces: list[Any] = field(default_factory=list[Any])
    resumes: bool = False
    reason: Optional[FinishReason] = None
    usage: Usage = field(default_factory=Usage)
    most: int = 0
    began: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self) -> None:
        """Does nothing: no stop comes."""

    def at_most(self, pieces: int) -> None:
        self.most = pieces

    def finish(
        self,
        reason: FinishReason = "stop",
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
    ) -> None:
        self.reason = reason
        self.usage = Usage(
            input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=cached_tokens
        )

    async def emit(self, piece: object) -> None:
        self.pieces.append(json.loads(json.dumps(piece, allow_nan=False)))
        self.began.set()
        assert len(self.pieces) + (len(self.before) if self.resumes else 0) <= self.most

    async def resumed(self) -> list[Any]:
        assert not self.pieces
        self.resumes = True
        return list(self.before)

    @property
    def all(self) -> list[Any]:
        """Pieces that the client has at the end."""
        return [*(self.before if self.resumes else ()), *self.pieces]

    @property
    def text(self) -> str:
        """Text of the reply."""
        return "".join(piece["text"] for piece in self.all)
