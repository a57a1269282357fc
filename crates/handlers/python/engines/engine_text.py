"""Answer to a text request by any engine that streams tokens.

The engine gets prompts of token ids and returns token ids. All that a client sees is made of them here: the
pieces, their texts, the order of several replies, the end, and the continuation of an earlier attempt.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Protocol

from nsbridge_handler import AsyncJob, BadInput, Retry

from engine_detokenize import Stops
from engine_reply import PromptPieces, Reply, Score
from engine_request import Facts, Request, read_request
from engine_words import Words


@dataclass(frozen=True)
class Call:
    """One reply that an engine is asked for."""

    id: str
    prompt: Sequence[int]
    request: Request
    seed: int
    max_tokens: int
    min_tokens: int
    prompt_logprobs: Optional[int]
    """Number of top log-probabilities of each token of the prompt, or None without any."""
    forced: Sequence[int]
    """First tokens of the reply, which the engine must take over."""
    scope: str
    """Prompts of different scopes must not share a cache."""
    media: object = None
    """What the engine made of the images beside the prompt."""


@dataclass(frozen=True)
class Prompt:
    """Prompt of a request."""

    tokens: list[int]
    media: object = None
    """What the engine made of the images beside the tokens."""


@dataclass(frozen=True)
class Delta:
    """What a step of an engine adds to a reply."""

    tokens: Sequence[int]
    scores: Sequence[Score] = ()
    """One for each token if the request asks for log-probabilities."""
    prompt: Sequence[Optional[Score]] = ()
    """One for each token of the prompt, in the first delta of a call that asks for them."""
    reason: Optional[str] = None
    """Reason of the end, with the last token: "stop", "length" or another one."""
    cached: Optional[int] = None
    """Number of tokens of the prompt that were in the engine's cache."""


class TextEngine(Protocol):
    """Engine that streams tokens."""

    facts: Facts
    words: Words
    can_force: bool
    """True if the engine can be forced to take over the first tokens of a reply."""

    def prompt(self, input: Mapping[str, Any], job: AsyncJob) -> Awaitable[Prompt]:
        """Returns the prompt of a request."""
        ...

    def generate(self, call: Call) -> AsyncGenerator[Delta, None]:
        """Streams a reply. The engine drops the call as soon as the generator is closed."""
        ...


async def answer(engine: TextEngine, input: Mapping[str, Any], job: AsyncJob) -> None:
    """Answers a request with pieces. Raises BadInput for one that cannot be answered."""
    request = read_request(input, engine.facts)
    prompt = await engine.prompt(input, job)
    work = _Work(engine, request, prompt, job)
    # An engine that cannot be forced begins such a reply anew, and the client compares.
    if engine.can_force or not work.replays:
        work.resume(await job.resumed())
    await work.run()
    work.finish()


class _Work:
    """Request in progress."""

    def __init__(self, engine: TextEngine, request: Request, whole: Prompt, job: AsyncJob) -> None:
        context, prompt = engine.facts.context, whole.tokens
        most = context if request.max_tokens is None else request.max_tokens
        if len(prompt) + min(most, 1) > context:
            raise BadInput(
                f"the prompt has {len(prompt)} tokens, which leaves no room for a reply in this model's "
                f"context of {context}"
            )
        limit = min(most, context - len(prompt))
        stops = Stops(request.stop)
        self.engine, self.request, self.prompt, self.job, self.limit = engine, request, prompt, job, limit
        self.replies = [Reply(index, engine.words, request, stops, limit) for index in range(request.n)]
        self.pieces = PromptPieces(engine.words, request, prompt) if request.has_prompt_pieces else None
        self.media, self.cached = whole.media, 0
        # The first tokens of such a reply are forced. Those of another one become a part of the prompt.
        repeats = not engine.facts.penalizes_prompt and request.sampling["repetition_penalty"] != 1
        self.replays = request.has_history or repeats
        if limit == 0:
            self.replies[0].end = "length"
        job.at_most((len(prompt) if self.pieces else 0) + request.n * limit)

    def resume(self, pieces: Sequence[Any]) -> None:
        """Takes over the pieces of an earlier attempt."""
        for piece in pieces:
            if self.pieces is not None and self.pieces.remain():
                self.pieces.resume(piece)
                continue
            due = self._due()
            if due is None or due.index != piece.get("index", 0):
                raise BadInput("the resumed pieces are not of this model's making")
            due.resume(piece["token"])
            # Only the engine knows that nothing may follow in a grammar.
            due.end = due.end or piece.get("finish_reason")

    async def run(self) -> None:
        """Emits the pieces that are still to come."""
        scored = self.pieces is not None and self.pieces.unscored()
        streams: dict[int, _Stream] = {}
        try:
            for reply in self.replies:
                if reply.end is None or scored:
                    streams[reply.index] = _Stream(self.engine.generate(self._call(reply, scored)))
            scores = (await streams[0].head()).prompt if scored else ()
            while self.pieces is not None and self.pieces.remain():
                await self.job.emit(self.pieces.take(scores))
            await self._emit_replies(streams)
            if 0 in streams:
                self.cached = min(streams[0].cached, len(self.prompt))
        finally:
            for stream in streams.values():
                await stream.close()

    async def _emit_replies(self, streams: Mapping[int, _Stream]) -> None:
        known = {reply.index: len(reply.tokens) for reply in self.replies if self.replays}
        while (due := self._due()) is not None:
            stream = streams[due.index]
            for place in range(known.pop(due.index, 0)):
                await self._skip(due, stream, place)
            if due.end is None:
                token, score, reason = await stream.next()
                await self.job.emit(due.take(token, score, reason))

    async def _skip(self, reply: Reply, stream: _Stream, place: int) -> None:
        """Reads a token that the client has."""
        token, _, reason = await stream.next()
        if token != reply.tokens[place]:
            raise Retry("the engine did not take over the tokens of an earlier attempt")
        if place + 1 == len(reply.tokens) and reason == "stop":
            # The grammar allows nothing after them.
            reply.end = "stop"

    def _call(self, reply: Reply, scored: bool) -> Call:
        forced = list(reply.tokens) if self.replays else []
        moved = 0 if forced else len(reply.tokens)
        return Call(
            id=f"{self.job.id}-{self.job.attempt}-{reply.index}",
            prompt=[*self.prompt, *reply.tokens[:moved]],
            request=self.request,
            seed=_seed(self.job.seed + reply.index, moved),
            max_tokens=max(self.limit - moved, 1),
            min_tokens=max(self.request.min_tokens - moved, 0),
            prompt_logprobs=self.request.prompt_logprobs if scored else None,
            forced=forced,
            scope=self.job.scope,
            media=self.media,
        )

    def _due(self) -> Optional[Reply]:
        """Returns the reply whose turn it is: of those that go on, the one with the fewest pieces."""
        going = [reply for reply in self.replies if reply.end is None]
        return min(going, key=lambda reply: len(reply.tokens), default=None)

    def finish(self) -> None:
        made = sum(len(reply.tokens) for reply in self.replies)
        reason = self.replies[0].end or "stop"
        self.job.finish(reason, input_tokens=len(self.prompt), output_tokens=made, cached_tokens=self.cached)


class _Stream:
    """Tokens of one reply, read from its deltas. The engine begins at once."""

    def __init__(self, deltas: AsyncGenerator[Delta, None]) -> None:
        self._deltas = deltas
        self._first: Optional[asyncio.Task[Delta]] = asyncio.ensure_future(_next(deltas))
        self._ready: deque[tuple[int, Optional[Score], Optional[str]]] = deque()
        self.cached = 0

    async def head(self) -> Delta:
        """Returns the first delta, whose tokens are read later."""
        if self._first is None:
            raise RuntimeError("the first delta was read")
        delta = await self._first
        self._first = None
        self._add(delta)
        return delta

    async def next(self) -> tuple[int, Optional[Score], Optional[str]]:
        """Returns the next token with its log-probabilities, and the reason of the end with the last one."""
        while not self._ready:
            if self._first is not None:
                await self.head()
            else:
                self._add(await _next(self._deltas))
        return self._ready.popleft()

    def _add(self, delta: Delta) -> None:
        if delta.cached is not None:
            self.cached = delta.cached
        for place, token in enumerate(delta.tokens):
            score = delta.scores[place] if place < len(delta.scores) else None
            reason = delta.reason if place + 1 == len(delta.tokens) else None
            self._ready.append((token, score, reason))

    async def close(self) -> None:
        """Ends the call in the engine, wherever it is."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._deltas.aclose()


async def _next(deltas: AsyncGenerator[Delta, None]) -> Delta:
    try:
        return await deltas.__anext__()
    except StopAsyncIteration:
        raise Retry("the engine ended a reply without a reason") from None


def _seed(seed: int, moved: int) -> int:
    """Returns the seed of a reply, or of its continuation after `moved` tokens, from 0 to 2^63 - 1.

    A continuation with the seed of its beginning would draw the same noise again.
    """
    if moved > 0:
        digest = hashlib.sha256(b"%d %d" % (seed, moved)).digest()
        seed = int.from_bytes(digest[:8], "big")
    return seed % (1 << 63)
