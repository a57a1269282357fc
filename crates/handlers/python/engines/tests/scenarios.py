"""Requests that were recorded from a real engine, and the places at which an attempt of them ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {
        "sky": {"enum": ["clear", "gray"]},
        "boats": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["sky", "boats"],
    "additionalProperties": False,
}
CALLS = {"begin": "<call>", "end": "</call>", "schema": SCHEMA}
SAID = 'Write calls.\n<call>{"sky": "gray", "boats": 3}</call>\n<call>{"sky": "clear", "boats": 4}</call>\n'


@dataclass(frozen=True)
class Scenario:
    """Request with its input."""

    name: str
    input: dict[str, Any]
    replays: bool = False
    """True if a later attempt replays the reply, and so ends it as the first one would have."""


_SEA: dict[str, Any] = {"prompt": "The sea is", "max_tokens": 12, "temperature": 0}
_HELLO = [{"role": "user", "content": "Say hello."}]
_TOP = {"logprobs": True, "top_logprobs": 2, "return_token_texts": True}
_ECHO = {"echo": True, "max_tokens": 2}

SCENARIOS = (
    Scenario("greedy", _SEA),
    Scenario("sampled", {**_SEA, "temperature": 1.0}),
    Scenario("several", {**_SEA, "temperature": 1.0, "n": 3, "max_tokens": 6, "stop": [" the"]}),
    Scenario("chat", {"messages": _HELLO, "max_tokens": 40, "temperature": 0}),
    Scenario("stop_text", {**_SEA, "stop": [" endless wonder"]}),
    Scenario("stop_token", {**_SEA, "stop_token_ids": [282], "min_tokens": 1}),
    Scenario("emoji", {"prompt": "Emoji: 🌟🐻🌊🌟🐻🌊", "max_tokens": 9, "temperature": 0}),
    Scenario("logprobs", {**_SEA, "max_tokens": 3, **_TOP}),
    Scenario("echo", {**_SEA, **_ECHO}),
    Scenario("scored", {**_SEA, **_ECHO, "prompt_logprobs": 1, "return_token_texts": True}),
    Scenario("only_scored", {**_SEA, "max_tokens": 0, "prompt_logprobs": 2}),
    Scenario("penalties", {**_SEA, "frequency_penalty": 1.5, "presence_penalty": 0.5}, True),
    Scenario("sequences", {**_SEA, "bad_token_ids": [253], "bad_token_sequences": [[260, 805]]}, True),
    Scenario(
        "schema",
        {
            "prompt": "The weather as JSON: ",
            "max_tokens": 40,
            "temperature": 1.0,
            "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        },
        True,
    ),
    Scenario(
        "calls",
        {
            "prompt": SAID,
            "max_tokens": 60,
            "temperature": 0,
            "response_format": {"type": "tool_calls", "tool_calls": CALLS},
        },
        True,
    ),
    Scenario(
        "several_schemas",
        {
            "prompt": "The weather as JSON: ",
            "max_tokens": 40,
            "temperature": 1.0,
            "n": 2,
            "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        },
        True,
    ),
)


def places(pieces: int) -> list[int]:
    """Returns the numbers of pieces after which an attempt ended."""
    return sorted({1, 2, pieces // 2, max(pieces - 1, 0), pieces} & set(range(1, pieces + 1)))
