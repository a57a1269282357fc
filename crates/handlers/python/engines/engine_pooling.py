"""Answers of models that make vectors or scores of texts, by any engine that makes numbers of tokens."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Optional, Protocol, Union

from nsbridge_handler import AsyncJob, BadInput

# Largest vector of a piece, in bytes of JSON, and the bytes of a number there.
_PIECE_BYTES = 64 << 10
_NUMBER_BYTES = 24


class PoolingEngine(Protocol):
    """Engine that reads a text whole and makes numbers of it."""

    context: int
    """Maximum number of tokens of a text."""

    def tokens(self, text: str) -> Awaitable[list[int]]:
        """Returns the tokens of a text, with those that the tokenizer adds."""
        ...

    def numbers(self, id: str, tokens: Sequence[int], scope: str) -> Awaitable[list[float]]:
        """Returns what the model makes of a text. A call that is canceled is dropped in the engine."""
        ...


async def embed(engine: PoolingEngine, size: int, input: Mapping[str, Any], job: AsyncJob) -> None:
    """Answers an EmbeddingInput with a vector of `size` numbers, or fewer, for each text in their order."""
    texts: list[Union[str, list[int]]] = input["input"]
    if not texts:
        raise BadInput("`input` has no text")
    kept = _kept(size, input.get("dimensions"))
    encoded = input.get("encoding_format") == "base64"
    if not encoded and kept * _NUMBER_BYTES > _PIECE_BYTES:
        most = _PIECE_BYTES // _NUMBER_BYTES
        raise BadInput(f"`encoding_format` must be base64 for more than {most} dimensions")
    job.at_most(len(texts))
    done = len(await job.resumed())
    tokens = [await _tokens(engine, f"input[{place}]", text) for place, text in enumerate(texts)]
    calls = [
        asyncio.ensure_future(engine.numbers(f"{job.id}-{job.attempt}-{place}", tokens[place], job.scope))
        for place in range(done, len(texts))
    ]
    try:
        for place, call in zip(range(done, len(texts)), calls):
            vector = _cut(await call, kept)
            await job.emit({"index": place, "embedding": _encoded(vector) if encoded else vector})
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    job.finish("stop", input_tokens=sum(map(len, tokens)))


async def judge(
    engine: PoolingEngine, categories: Sequence[str], input: Mapping[str, Any], job: AsyncJob
) -> None:
    """Answers a JudgeInput with the scores of the model's categories."""
    if input.get("question") is not None:
        raise BadInput("`question` is not possible: the model has categories of its own")
    wanted = [label["label"] for label in input.get("labels") or ()] or categories
    if not set(wanted) <= set(categories):
        raise BadInput(f"`labels` must be among the model's categories: {', '.join(categories)}")
    tokens = await _tokens(engine, "text", input["text"])
    job.at_most(1)
    if not await job.resumed():
        numbers = await engine.numbers(f"{job.id}-{job.attempt}", tokens, job.scope)
        scores = dict(zip(categories, numbers, strict=True))
        await job.emit({label: scores[label] for label in wanted})
    job.finish("stop", input_tokens=len(tokens))


async def _tokens(engine: PoolingEngine, field: str, text: Union[str, Sequence[int]]) -> list[int]:
    """Returns the tokens of a text. To token ids nothing is added."""
    tokens = await engine.tokens(text) if isinstance(text, str) else list(text)
    if not 1 <= len(tokens) <= engine.context:
        raise BadInput(f"`{field}` has {len(tokens)} tokens, and 1 to {engine.context} are possible")
    return tokens


def _kept(size: int, dimensions: Optional[int]) -> int:
    if dimensions is None:
        return size
    if not 1 <= dimensions <= size:
        raise BadInput(f"`dimensions` must be from 1 to {size}")
    return dimensions


def _cut(vector: list[float], kept: int) -> list[float]:
    """Returns the first numbers of a vector, scaled to the length that it had."""
    first = vector[:kept]
    size = math.hypot(*first)
    return first if kept == len(vector) or not size else [each * math.hypot(*vector) / size for each in first]


def _encoded(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
