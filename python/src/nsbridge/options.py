"""Types of the keyword arguments of requests, and the check of those of a model of text."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, TypedDict

from .contents import is_count
from .errors import InvalidRequest


class RequestOptions(TypedDict, total=False):
    """Arguments of each request."""

    tenant: str | None
    seed: int | None
    revision: str | None
    bulk: bool
    timeout: float
    id: str | None
    trace: str | None


class SubmitOptions(RequestOptions, total=False):
    """Arguments of a request for any model."""

    replay_key: Callable[[bytes], bytes]


class ReattachOptions(TypedDict, total=False):
    """Arguments of a request that another client has submitted."""

    tenant: str | None
    revision: str | None
    bulk: bool
    trace: str | None
    replay_key: Callable[[bytes], bytes]


class TextOptions(TypedDict, total=False):
    """Fields of a text model's input, beside the prompt."""

    tools: Sequence[Mapping[str, Any]]
    chat_template_kwargs: Mapping[str, Any]
    reasoning_effort: str | None
    add_generation_prompt: bool | None
    continue_final_message: bool
    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float] | Mapping[str, float]
    bad_token_ids: Sequence[int]
    bad_token_sequences: Sequence[Sequence[int]]
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    skip_special_tokens: bool | None
    logprobs: bool
    top_logprobs: int | None
    return_token_texts: bool
    response_format: Mapping[str, Any]
    n: int | None
    echo: bool
    prompt_logprobs: int | None
    priority: int | None


class TextRequestOptions(RequestOptions, TextOptions, total=False):
    """Arguments of a request for a model of text."""


def is_number(value: Any) -> bool:
    """Returns True for a finite number; `True` is none."""
    return type(value) is not bool and isinstance(value, (int, float)) and abs(value) < math.inf


def listed(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Returns the test of a list, by that of an element."""
    return lambda value: isinstance(value, (list, tuple)) and all(map(test, value))


def is_object(value: object) -> bool:
    """Returns True for what is written as a JSON object."""
    return isinstance(value, dict)


Kind = tuple[str, Callable[[Any], bool]]
"""What an option takes, in words, and its test."""

SWITCH: Kind = ("True or False", lambda value: isinstance(value, bool))
COUNT: Kind = ("a whole number of at least 0", is_count)
NUMBER: Kind = ("a number", is_number)
FROM_ZERO: Kind = ("a number of at least 0", lambda value: is_number(value) and value >= 0)
TOKENS: Kind = ("a list of token ids", listed(is_count))
OBJECT: Kind = ("a dict", is_object)

TAKES: dict[str, Kind] = {
    "tools": ("a list of dicts", listed(is_object)),
    "chat_template_kwargs": OBJECT,
    "reasoning_effort": ("a text", lambda value: isinstance(value, str)),
    "add_generation_prompt": SWITCH,
    "continue_final_message": SWITCH,
    "max_tokens": COUNT,
    "min_tokens": COUNT,
    "temperature": FROM_ZERO,
    "top_p": FROM_ZERO,
    "top_k": COUNT,
    "min_p": FROM_ZERO,
    "repetition_penalty": FROM_ZERO,
    "frequency_penalty": NUMBER,
    "presence_penalty": NUMBER,
    "logit_bias": (
        "a dict of numbers",
        lambda value: is_object(value) and all(map(is_number, value.values())),
    ),
    "bad_token_ids": TOKENS,
    "bad_token_sequences": ("a list of lists of token ids", listed(TOKENS[1])),
    "stop": ("a list of texts", listed(lambda value: isinstance(value, str))),
    "stop_token_ids": TOKENS,
    "ignore_eos": SWITCH,
    "skip_special_tokens": SWITCH,
    "logprobs": SWITCH,
    "top_logprobs": COUNT,
    "return_token_texts": SWITCH,
    "response_format": OBJECT,
    "n": ("a whole number of at least 1", lambda value: is_count(value) and value > 0),
    "echo": SWITCH,
    "prompt_logprobs": COUNT,
    "priority": ("a whole number", lambda value: type(value) is int),
}
"""Options of a model of text. Their limits are the worker's to check."""


def check(name: str, value: object) -> None:
    """Raises `InvalidRequest` if this is no option of a model of text, or takes no such value."""
    if name not in TAKES:
        near = difflib.get_close_matches(name, TextRequestOptions.__annotations__, 1)
        advice = f"did you mean `{near[0]}`?" if near else "`submit` sends inputs with other fields"
        raise InvalidRequest(f"`{name}` is no option of a request for text: {advice}")
    words, test = TAKES[name]
    if not test(value):
        shown: object = value
        if not isinstance(value, (int, float)):  # it may be a text of the user
            shown = f"a value of type {type(value).__name__}"
        raise InvalidRequest(f"`{name}` takes {words}, not {shown}")
