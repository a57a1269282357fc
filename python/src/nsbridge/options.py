"""Types of the keyword arguments of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, TypedDict


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
