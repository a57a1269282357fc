"""What the tests of the suites with SmolLM2 share."""

from enum import Enum
from typing import Literal

from pydantic import BaseModel, ConfigDict

TIMEOUT_S = 120
# The model ends some replies with its first token. vLLM's parameter prevents that.
AT_LEAST = {"min_tokens": 4}
# Longer than the model's context of 8192 tokens.
LONG = "The sea is calm. " * 2500


class Closed(BaseModel):
    """A model without other fields, because SmolLM2 may write those up to the limit of tokens."""

    model_config = ConfigDict(extra="forbid")


class Feeling(str, Enum):
    happy = "happy"
    sad = "sad"


class Mood(Closed):
    """Mood of a sailor."""

    feeling: Feeling
    certain: bool


class Weather(Closed):
    """Weather at sea. Its schema has no definitions."""

    sky: Literal["clear", "gray"]
    windy: bool


def failure(kind, call):
    """Calls a function that must fail with this class of errors, and returns the error."""
    try:
        done = call()
    except kind as error:
        return error
    raise AssertionError(f"there was no {kind.__name__}: {done!r}")
