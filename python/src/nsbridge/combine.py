"""Requests in steps: one deadline, one trace and one seed for all of them."""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

from .constants import MAX_SECONDS
from .errors import Closed, Deadline, UnexpectedPiece
from .options import TextRequestOptions
from .reply import AsyncReply
from .request import traceparent
from .text import (
    Embeddings,
    P,
    Prompt,
    Result,
    Scores,
    TextPiece,
    embed_input,
    judge_input,
    read_embeddings,
    read_json,
    read_scores,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
R = TypeVar("R")


async def in_order(
    items: Iterable[T], step: Callable[[T], Awaitable[R]], concurrency: int
) -> AsyncIterator[R]:
    """Returns the results of a step for each item, in order; some of them run at once.

    An error, or the end of the iteration, cancels the steps that run.
    """
    if concurrency < 1:
        raise ValueError("the concurrency is at least 1")
    running: list[asyncio.Future[R]] = []
    source = iter(items)
    try:
        while True:
            while len(running) < concurrency:
                try:
                    item = next(source)
                except StopIteration:
                    break
                running.append(asyncio.ensure_future(step(item)))
            if not running:
                return
            # An error of a later item ends the iteration as soon as it is known.
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for done in running:
                if done.done() and not done.cancelled() and done.exception() is not None:
                    done.result()
            while running and running[0].done():
                yield running.pop(0).result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Submitter(Protocol):
    """Client, as a flow uses it."""

    def submit(
        self,
        model: str,
        input: Any,
        *,
        read: Callable[[bytes], P],
        tenant: str | None,
        seed: int | None,
        bulk: bool,
        timeout: float,
        trace: str | None,
    ) -> AsyncReply[P]: ...

    def text(
        self, model: str, prompt: Prompt, **options: Unpack[TextRequestOptions]
    ) -> AsyncReply[TextPiece]: ...


class Flow:
    """Steps of one task, in a context of their own.

    All requests end by one deadline and belong to one trace. The seed of a step is derived from the
    flow's seed and the number of the step; an item of `map` is a flow of its own, so the order in
    which items run changes no seed. Leaving the context cancels the requests that still run.
    """

    def __init__(
        self,
        client: Submitter,
        *,
        timeout: float = 300,
        seed: int | None = None,
        tenant: str | None = None,
        bulk: bool = False,
        trace: str | None = None,
    ):
        self.client, self.tenant, self.bulk = client, tenant, bulk
        self.seed = secrets.randbits(53) if seed is None else seed
        self.trace = traceparent(trace)
        self.deadline = time.monotonic() + timeout
        self.steps = 0
        """Number of steps so far."""
        self._replies: WeakSet[AsyncReply[Any]] = WeakSet()
        self._parts: WeakSet[Flow] = WeakSet()
        self._cancelled = False

    async def __aenter__(self) -> Flow:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cancel()

    async def cancel(self) -> None:
        """Cancels the requests that still run, those of items included, and refuses others."""
        self._cancelled = True
        replies, self._replies = self._replies, WeakSet()
        for reply in list(replies):
            if reply.summary is None:
                await reply.cancel()
        for part in list(self._parts):
            await part.cancel()

    @property
    def left(self) -> float:
        """Seconds until the deadline. Raises `Deadline` if there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Deadline("the time limit of the flow has passed")
        return left

    def _step(self) -> dict[str, Any]:
        """Returns the options of the next request. Raises `Closed` after a cancel."""
        if self._cancelled:
            raise Closed("the flow was cancelled")
        seed = step_seed(self.seed, self.steps)
        self.steps += 1
        return {
            "timeout": min(self.left, MAX_SECONDS),
            "seed": seed,
            "tenant": self.tenant,
            "bulk": self.bulk,
            "trace": self.trace,
        }

    def _keep(self, reply: AsyncReply[P]) -> AsyncReply[P]:
        self._replies.add(reply)
        return reply

    def submit(
        self, model: str, input: Any, *, read: Callable[[bytes], P] = read_json
    ) -> AsyncReply[P]:
        """Returns the reply to a request for any model."""
        return self._keep(self.client.submit(model, input, read=read, **self._step()))

    def text(self, model: str, prompt: Prompt, **options: Any) -> AsyncReply[TextPiece]:
        """Returns the reply of a model of text."""
        return self._keep(self.client.text(model, prompt, **{**self._step(), **options}))

    async def judge(
        self,
        model: str,
        text: str,
        question: str | None = None,
        labels: Sequence[str] | Mapping[str, str | None] | None = None,
    ) -> Scores:
        """Returns the scores of a text."""
        reply: AsyncReply[Any] = self.submit(model, judge_input(text, question, labels))
        return read_scores((await reply.collect()).pieces)

    async def embed(self, model: str, texts: str | Sequence[str]) -> Embeddings:
        """Returns the vectors of texts."""
        result: Result[Any] = await self.submit(model, embed_input(texts)).collect()
        return read_embeddings(result.pieces, result.summary.usage)

    async def map(
        self,
        items: Iterable[T],
        step: Callable[[Flow, T], Awaitable[R]],
        *,
        concurrency: int = 8,
    ) -> list[R]:
        """Runs a step for each item, some at once, and returns the results in order.

        Each item has a flow of its own with this flow's deadline and trace. The first error cancels
        the other items.
        """
        first = self.steps
        numbered = list(enumerate(items, first))
        self.steps += len(numbered)

        async def one(item: tuple[int, T]) -> R:
            number, value = item
            async with self._part(number) as part:
                return await step(part, value)

        return [result async for result in in_order(numbered, one, concurrency)]

    def _part(self, number: int) -> Flow:
        if self._cancelled:
            raise Closed("the flow was cancelled")
        part = Flow(
            self.client,
            timeout=self.left,
            seed=step_seed(self.seed, number),
            tenant=self.tenant,
            bulk=self.bulk,
            trace=self.trace,
        )
        self._parts.add(part)
        return part


def step_seed(seed: int, number: int) -> int:
    """Returns the seed of a step: 53 bits of SHA-256 of a label, the flow's seed and the number.

    The Rust client has the same rule.
    """
    text = b"nsbridge flow\0" + seed.to_bytes(8, "big") + number.to_bytes(8, "big")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 11


class CutOff(Exception):
    """Score of a judge above its limit. `text` is the text that passed before it."""

    def __init__(self, label: str, score: float, limit: float, text: str):
        super().__init__(f"the judge's score for `{label}` is above {limit}")
        self.label, self.score, self.limit, self.text = label, score, limit, text


async def judged(
    flow: Flow,
    prompt: str,
    *,
    judge: str,
    writer: str,
    limits: Mapping[str, float],
    labels: Sequence[str] | Mapping[str, str | None] | None = None,
    every: int = 400,
    **options: Any,
) -> AsyncIterator[str]:
    """Judges a prompt, writes, and returns the text in parts that the judge let pass.

    The judge reads the prompt first, then the text so far after each `every` characters and at its
    end. `limits` are the highest scores that pass, by label. A higher one cancels the writer and
    raises `CutOff`; a label without a score raises `UnexpectedPiece`. `options` are fields of the writer's input, such as `max_tokens`.
    """

    async def check(text: str, passed: str) -> None:
        scores = await flow.judge(judge, text, labels=labels)
        for label, limit in limits.items():
            score = scores.scores.get(label)
            if score is None:
                raise UnexpectedPiece(
                    f"the judge gave no score for `{label}`: name one of its categories, "
                    "or pass labels"
                )
            if not score <= limit:  # a limit that is no number lets nothing pass
                raise CutOff(label, score, limit, passed)

    await check(prompt, "")
    passed, waiting = "", ""
    async with flow.text(writer, prompt, **options) as reply:
        async for piece in reply:
            waiting += piece.text
            if len(waiting) >= every:
                await check(passed + waiting, passed)
                yield waiting
                passed, waiting = passed + waiting, ""
    if waiting:
        await check(passed + waiting, passed)
        yield waiting


@dataclass(frozen=True)
class Passage:
    """Text that was retrieved, with its cosine similarity to the question."""

    text: str = field(repr=False)
    score: float = field(repr=False)


async def retrieve(
    flow: Flow, question: str, passages: Sequence[str], *, embedder: str, count: int = 4
) -> list[Passage]:
    """Returns the passages that are most similar to a question, the best first."""
    vectors = (await flow.embed(embedder, [question, *passages])).vectors
    scored = [
        Passage(text, cosine(vectors[0], vector)) for text, vector in zip(passages, vectors[1:])
    ]
    return sorted(scored, key=lambda passage: -passage.score)[:count]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns the cosine of the angle between two vectors."""
    length = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b)) / length if length else 0.0


async def answer(
    flow: Flow,
    question: str,
    passages: Sequence[str],
    *,
    embedder: str,
    writer: str,
    count: int = 4,
    prompt: Callable[[str, list[Passage]], Prompt] | None = None,
    **options: Any,
) -> Result[TextPiece]:
    """Retrieves passages and lets a model answer a question from them.

    `prompt` makes the writer's prompt from the question and the passages; without it, they are one
    message of the user.
    """
    found = await retrieve(flow, question, passages, embedder=embedder, count=count)
    made = prompt(question, found) if prompt else cited(question, found)
    return await flow.text(writer, made, **options).collect()


def cited(question: str, found: list[Passage]) -> Prompt:
    """Returns a message with numbered passages and a question."""
    sources = "\n".join(f"[{number}] {p.text}" for number, p in enumerate(found, 1))
    return [{"role": "user", "content": f"Sources:\n{sources}\n\nQuestion: {question}"}]
