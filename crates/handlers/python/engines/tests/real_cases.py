"""Requests for a real vLLM, with the same requests in vLLM's own terms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scenarios import SCHEMA

PROMPTS = (
    "The sea is",
    "Once upon a time a bear",
    "def add(a, b):\n    return",
    "Die Kapitänin sagte: „Über Bord",
    "東京は",
    "1, 2, 3, 4,",
    "Emoji: 🌟🐻🌊",
    "Q: Who lives by the sea?\nA:",
)


@dataclass(frozen=True)
class Case:
    """Request in both terms."""

    input: dict[str, Any]
    params: dict[str, Any]


def _own(**fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return fields, fields


_GREEDY = {"temperature": 0.0, "max_tokens": 10}
# Fields of a TextInput, and vLLM's parameters.
_FIELDS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    _own(),
    _own(temperature=1.0),
    _own(temperature=0.7, top_p=0.8),
    _own(temperature=1.0, top_k=5),
    _own(temperature=1.2, min_p=0.1),
    _own(repetition_penalty=1.4),
    _own(frequency_penalty=1.0),
    _own(presence_penalty=1.5),
    _own(temperature=1.0, repetition_penalty=1.2, frequency_penalty=-0.5, presence_penalty=0.3),
    ({"logit_bias": {"253": -100, "260": 3.5}}, {"logit_bias": {253: -100, 260: 3.5}}),
    ({"bad_token_ids": [253, 260]}, {"logit_bias": {253: -1e9, 260: -1e9}}),
    ({"stop_token_ids": [28, 30, 198]}, {"stop_token_ids": [28, 30, 198]}),
    ({"stop_token_ids": [28, 30], "min_tokens": 6}, {"stop_token_ids": [28, 30], "min_tokens": 6}),
    ({"stop": [" the", "\n", "."]}, {"stop": [" the", "\n", "."]}),
    ({"stop": ["a", "e"], "temperature": 1.0}, {"stop": ["a", "e"], "temperature": 1.0}),
    _own(ignore_eos=True, max_tokens=16),
    _own(ignore_eos=True, max_tokens=16, skip_special_tokens=False, temperature=1.5),
    ({"logprobs": True}, {"logprobs": 0}),
    ({"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}),
    ({"logprobs": True, "top_logprobs": 3, "temperature": 1.0}, {"logprobs": 3, "temperature": 1.0}),
    ({"prompt_logprobs": 3}, {"prompt_logprobs": 3}),
    ({"echo": True, "logprobs": True}, {"prompt_logprobs": 0, "logprobs": 0}),
    ({"prompt_logprobs": 0, "max_tokens": 0}, {"prompt_logprobs": 0, "max_tokens": 1}),
    _own(min_tokens=5, max_tokens=5),
    _own(max_tokens=1),
)


def cases(prompt: str) -> Iterator[Case]:
    """Yields a prompt with each set of fields."""
    for fields, params in _FIELDS:
        yield Case({"prompt": prompt, **_GREEDY, **fields}, {**_GREEDY, "seed": 7, **params})


def schema_input(**fields: Any) -> dict[str, Any]:
    """Returns a request inside a schema."""
    form = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    return {"prompt": "The weather as JSON: ", "max_tokens": 60, "response_format": form, **fields}
