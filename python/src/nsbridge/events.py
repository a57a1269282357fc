"""Events of a reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Union

from .text import P_co, Summary


@dataclass(frozen=True)
class Piece(Generic[P_co]):
    """The next piece."""

    value: P_co


@dataclass(frozen=True)
class Restart:
    """Difference of a later attempt. Of the pieces so far only the first `kept` stand."""

    kept: int


@dataclass(frozen=True)
class Opened:
    """Worker that began an attempt at the request."""

    attempt: int
    worker: str
    revision: str | None


@dataclass(frozen=True)
class Moved:
    """Worker that handed the request over; another attempt follows."""


@dataclass(frozen=True)
class Waiting:
    """Silence of some seconds. The request may still wait for a worker."""

    seconds: float


@dataclass(frozen=True)
class EnqueuedAgain:
    """New copy of the request, because replies were lost. `copies` counts the first one too."""

    copies: int


@dataclass(frozen=True)
class Hint:
    """Unsealed hint of a worker that cannot open the request. Any publisher can forge it."""

    code: str


@dataclass(frozen=True)
class Done:
    """Complete reply. No event follows."""

    summary: Summary


Event = Union[Piece[P_co], Restart, Opened, Moved, Waiting, EnqueuedAgain, Hint, Done]
"""Event of a reply. A caller that ignores a kind it does not know still reads the whole reply."""
