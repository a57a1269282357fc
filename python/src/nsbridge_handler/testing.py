"""One call of a model in this process, for the tests of its author.

`answer` calls `handle` or `run` as a worker does, and reads the pieces. The rest of a worker is not
here: the type hint of the input is not checked, no stop comes, and no process is started. The
command `nsbridge handler check model.py --input JSON` runs a model as a worker runs it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from . import AsyncModel, BatchModel, FinishReason, InputModel, Model, SeededBatchModel, Usage

AnyModel = Union[Model, InputModel, AsyncModel, BatchModel, SeededBatchModel]
"""Object or module that has `handle` or `run`, after its `load`."""

LIMIT_S = 300


@dataclass
class Answer:
    """Reply of a model: its pieces as a client reads them, and its end."""

    pieces: list[Any]
    """Pieces, those of the earlier attempt included if the model continues after them."""
    reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)
    most: int | None = None
    """Maximum number of pieces, if the model declares it."""


def answer(
    model: AnyModel,
    input: Any,
    *,
    seed: int = 0,
    attempt: int = 1,
    tenant: str = "default",
    resumed: Sequence[Any] = (),
) -> Answer:
    """Returns the reply to one input. `resumed` are pieces that the client has already.

    An exception of the model is raised here: `BadInput`, `Retry`, `Fatal` or any other.
    """
    handle = getattr(model, "handle", None)
    given = (seed, attempt, tenant, resumed)
    if handle is None:
        return _batch(getattr(model, "run", None), input, _Job(*given))
    if inspect.isasyncgenfunction(handle) or inspect.iscoroutinefunction(handle):
        return asyncio.run(_task(handle, input, _AsyncJob(*given)))
    return _call(handle, input, _Job(*given))


class _Record:
    """Parts that both kinds of job share: they write into the answer."""

    id, scope = "00000000-0000-4000-8000-000000000000", "test"

    def __init__(self, seed: int, attempt: int, tenant: str, resumed: Sequence[Any]):
        self.seed, self.attempt, self.tenant = seed, attempt, tenant
        self.submitted_at = time.time()
        self.deadline = self.submitted_at + LIMIT_S
        self.answer, self.before = Answer([]), [_plain(piece) for piece in resumed]
        self.asked = False

    def check(self) -> None:
        """Does nothing: no stop comes."""

    def at_most(self, pieces: int) -> None:
        self.answer.most = int(pieces)

    def finish(
        self,
        reason: FinishReason = "stop",
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
    ) -> None:
        if reason not in ("stop", "length", "stop_text"):
            raise ValueError("the reason of an end is stop, length or stop_text")
        self.answer.reason = reason
        self.answer.usage = Usage(
            input_tokens=int(input_tokens),
            output_tokens=int(output_tokens),
            cached_tokens=int(cached_tokens),
        )

    def take(self, piece: object) -> None:
        self.answer.pieces.append(_plain(piece))

    def resume(self) -> list[Any]:
        if not self.asked:
            if self.answer.pieces:
                raise RuntimeError("job.resumed() must come before the first piece")
            self.answer.pieces += self.before
            self.asked = True
        return self.before


class _Job(_Record):
    def emit(self, piece: object) -> None:
        self.take(piece)

    def resumed(self) -> list[Any]:
        return self.resume()


class _AsyncJob(_Record):
    async def emit(self, piece: object) -> None:
        self.take(piece)

    async def resumed(self) -> list[Any]:
        return self.resume()


def _call(handle: Callable[..., Any], input: Any, job: _Job) -> Answer:
    result = handle(input, job) if _accepts(handle, 2) else handle(input)
    if hasattr(result, "__next__"):
        for piece in result:
            job.emit(piece)
    elif inspect.isawaitable(result) or inspect.isasyncgen(result):
        raise TypeError("declare `handle` with `async def`")
    elif result is not None:
        job.emit(result)
    return job.answer


async def _task(handle: Callable[..., Any], input: Any, job: _AsyncJob) -> Answer:
    if not _accepts(handle, 2):
        raise TypeError("an asynchronous `handle` takes the input and the job")
    result = handle(input, job)
    if inspect.isasyncgen(result):
        async for piece in result:
            await job.emit(piece)
    else:
        piece = await result
        if piece is not None:
            await job.emit(piece)
    return job.answer


def _batch(run: Callable[..., Any] | None, input: Any, job: _Job) -> Answer:
    if run is None:
        raise TypeError("the model has no method `handle` or `run`")
    if job.resumed():
        return job.answer
    outputs = list(run([input], [job]) if _accepts(run, 2) else run([input]))
    if len(outputs) != 1:
        raise ValueError("`run` returns one output for each input")
    if isinstance(outputs[0], BaseException):
        raise outputs[0]
    job.emit(outputs[0])
    return job.answer


def _accepts(function: Callable[..., Any], count: int) -> bool:
    """Returns true if the function can be called with this many positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _plain(piece: object) -> Any:
    """Returns a piece as a client reads it from its JSON."""
    return json.loads(json.dumps(piece, ensure_ascii=False, allow_nan=False))
