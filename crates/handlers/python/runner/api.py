"""Names for the author of a model: `from nsbridge_handler import BadInput, Job`.

The runner of a worker begins with this file, so that these names need no installation there. The
Python package `nsbridge_handler` has the same file, for editors, type checkers and tests.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, Union

__all__ = [
    "AsyncJob",
    "AsyncModel",
    "BadInput",
    "BatchModel",
    "Fatal",
    "FinishReason",
    "InputModel",
    "Job",
    "Model",
    "Models",
    "Options",
    "Retry",
    "SeededBatchModel",
    "Stopped",
    "TextPiece",
    "TokenLogprob",
    "TokenText",
    "Usage",
]

FinishReason = Literal["stop", "length", "stop_text"]
# Text of a token by itself, or its bytes if they are a part of a character.
TokenText = Union[str, list[int]]
# Folders of the models by name, as `load` gets them.
Models = dict[str, Path]
# Table `[handler.options]`, as `load` gets it.
Options = dict[str, Any]


class BadInput(Exception):
    """Input that cannot be answered; the client receives the sentence, and nothing is retried."""


class Retry(Exception):
    """Failure that another worker or a later try may not meet."""


class Fatal(Exception):
    """Failure of the model itself: the request is requeued, and the worker exits."""


class Stopped(BaseException):
    """Stop of a call. Not an Exception, so that `except Exception` does not hold it back."""


class _Logprob(TypedDict):
    token: int
    logprob: float


class TokenLogprob(_Logprob, total=False):
    """Token that was likely at one place, with its log-probability."""

    text: TokenText


class _Token(TypedDict):
    token: int
    text: str


class TextPiece(_Token, total=False):
    """Piece of a text model. A string is a piece too: its text, with the token 0."""

    logprob: float
    token_text: TokenText
    top_logprobs: list[TokenLogprob]
    rank: int
    prompt: bool
    index: int
    finish_reason: FinishReason


class Usage(TypedDict, total=False):
    """Token counts of a request: `job.finish("length", **usage)`."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int


class _Request(Protocol):
    """Parts of a job that both kinds share."""

    id: str
    seed: int
    attempt: int
    tenant: str
    scope: str
    # Seconds since 1970.
    submitted_at: float
    deadline: float

    def check(self) -> None:
        """Raises Stopped if the call must end."""

    def at_most(self, pieces: int) -> None:
        """Declares the maximum number of pieces, those of an earlier attempt included."""

    def finish(
        self,
        reason: FinishReason = "stop",
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
    ) -> None:
        """Sets the reason of the end ("stop", "length" or "stop_text") and the token counts."""


class Job(_Request, Protocol):
    """Request in progress, for a function or a generator."""

    def emit(self, piece: object) -> None:
        """Sends a piece. Waits while the client is too far behind."""

    @abstractmethod
    def resumed(self) -> list[Any]:
        """Returns the pieces that the client has from an earlier attempt; continue after them."""


class AsyncJob(_Request, Protocol):
    """Request in progress, for a coroutine or an asynchronous generator."""

    async def emit(self, piece: object) -> None:
        """Sends a piece. Waits while the client is too far behind."""

    @abstractmethod
    async def resumed(self) -> list[Any]:
        """Returns the pieces that the client has from an earlier attempt; continue after them."""


class Model(Protocol):
    """Model whose `handle` is a generator or a function, called on a thread."""

    @abstractmethod
    def handle(self, input: Any, job: Job) -> object:
        """Yields the pieces, or returns an iterator of them; or emits them, or returns one."""


class InputModel(Protocol):
    """Model whose `handle` takes the input alone. It is no asynchronous function."""

    @abstractmethod
    def handle(self, input: Any) -> object:
        """Answers as that of `Model`."""


class AsyncModel(Protocol):
    """Model whose `handle` is an asynchronous generator or a coroutine, a task of an event loop."""

    @abstractmethod
    def handle(self, input: Any, job: AsyncJob) -> Union[AsyncIterator[Any], Awaitable[Any]]:
        """Yields the pieces; or emits them, or returns one. Write it with `async def`."""


class BatchModel(Protocol):
    """Model that answers several inputs at once."""

    @abstractmethod
    def run(self, inputs: list[Any]) -> Iterable[object]:
        """Returns one output for each input. An exception among them fails its input alone."""


class SeededBatchModel(Protocol):
    """Model that answers several inputs at once, and uses the seeds of their jobs."""

    @abstractmethod
    def run(self, inputs: list[Any], jobs: list[Job]) -> Iterable[object]:
        """Returns one output for each input. An exception among them fails its input alone."""
