"""instructor with the modes that have schemas, and models with all kinds of fields."""

import functools
from enum import Enum
from typing import Annotated, Literal, Union

import instructor
import openai
from pydantic import Field
from report import KEY, MODEL, URL
from smollm2 import TIMEOUT_S, Closed, Mood, Weather

QUESTION = {"role": "user", "content": "Tell me about a ship."}
# Without a retry, a reply that does not conform to the schema fails the test.
ASKED = {"model": MODEL, "messages": [QUESTION], "max_tokens": 200, "temperature": 0, "max_retries": 0}
# The model may write a list up to the limit of tokens.
SHORT = Field(min_length=1, max_length=2)


class Color(Enum):
    red = "red"
    blue = "blue"


class Sail(Closed):
    kind: Literal["sail"]
    color: Color


class Engine(Closed):
    kind: Literal["engine"]
    power: Literal[10, 20]


class Ship(Closed):
    """A ship."""

    drive: Union[Sail, Engine]
    color: Color
    crew: Annotated[list[Annotated[list[Literal["Ann", "Bob"]], SHORT]], SHORT]
    flag: bool | None
    captain: Mood


class Chosen(Closed):
    """A drive that its kind tells."""

    drive: Annotated[Union[Sail, Engine], Field(discriminator="kind")]


class Harbors(Closed):
    """Harbors of a ship."""

    names: Annotated[set[Literal["Rome", "Oslo"]], SHORT]


class Cargo(Closed):
    """Cargo of a ship."""

    label: Annotated[bytes, Field(max_length=8)]


def client(mode):
    plain = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, timeout=TIMEOUT_S, max_retries=0)
    return instructor.from_openai(plain, mode=mode)


def created(mode, model):
    return client(mode).chat.completions.create(response_model=model, **ASKED)


def ship(mode):
    found = created(mode, Ship)
    assert isinstance(found, Ship), found
    assert isinstance(found.drive, (Sail, Engine)) and isinstance(found.color, Color), found
    assert 1 <= len(found.crew) <= 2 and all(isinstance(names, list) for names in found.crew), found


def discriminated_union(mode):
    found = created(mode, Chosen)
    assert isinstance(found.drive, (Sail, Engine)), found
    assert found.drive.kind in ("sail", "engine"), found


def set_of_names(mode):
    found = created(mode, Harbors)
    assert isinstance(found.names, set) and found.names <= {"Rome", "Oslo"} and found.names, found


def short_bytes(mode):
    found = created(mode, Cargo)
    assert isinstance(found.label, bytes) and len(found.label) <= 8, found


def partial_stream(mode):
    parts = list(client(mode).chat.completions.create_partial(response_model=Weather, **ASKED))
    assert len(parts) > 1, parts
    Weather.model_validate(parts[-1].model_dump())


def named(body, mode):
    test = functools.partial(body, mode)
    test.__name__ = f"instructor_{body.__name__}_with_{mode.name}"
    return test


MODES = [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA]
BODIES = [ship, discriminated_union, set_of_names, short_bytes, partial_stream]
TESTS = [named(body, mode) for mode in MODES for body in BODIES]
