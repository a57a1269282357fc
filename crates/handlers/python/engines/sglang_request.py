"""Text requests as SGLang's sampling parameters.

SGLang's own engine decides where its parameters differ from the protocol's: `repetition_penalty` is at most 2
and counts the tokens of the reply alone; `min_tokens` bans the model's end tokens also with `ignore_eos`; the
seed has an effect with `enable_deterministic_inference` alone; and log-probabilities are those after the
penalties, `logit_bias` and the mask of a format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nsbridge_handler import BadInput

from engine_format import calls_tag
from engine_request import Request
from engine_text import Call
from sglang_forced import FORCED

# Bias of a banned token. SGLang takes it only where a format allows nothing else, which is told then.
BANNED = -1e9
_WHOLE_VOCABULARY = -1


def sampling_params(call: Call) -> dict[str, Any]:
    """Returns the parameters of a call. Raises BadInput for what SGLang cannot do."""
    request, sampling = call.request, call.request.sampling
    params: dict[str, Any] = {
        "temperature": sampling["temperature"],
        "top_p": sampling["top_p"],
        "top_k": int(sampling["top_k"]) or _WHOLE_VOCABULARY,
        "min_p": sampling["min_p"],
        "repetition_penalty": sampling["repetition_penalty"],
        "frequency_penalty": sampling["frequency_penalty"],
        "presence_penalty": sampling["presence_penalty"],
        "sampling_seed": call.seed,
        "max_new_tokens": call.max_tokens,
        "min_new_tokens": call.min_tokens,
        "ignore_eos": request.ignore_eos,
        "stop_token_ids": list(request.stop_token_ids),
        **_format(request),
    }
    bias = _bias(request)
    if bias:
        params["logit_bias"] = bias
    if call.forced:
        params["custom_params"] = {FORCED: list(call.forced)}
    return params


def _bias(request: Request) -> dict[str, float]:
    banned = set(request.bad_token_ids)
    for sequence in request.bad_token_sequences:
        if len(sequence) > 1:
            raise BadInput("`bad_token_sequences` of more than one token are not possible in this engine")
        banned.update(sequence)
    bias = {str(token): value for token, value in request.logit_bias.items()}
    return {**bias, **{str(token): BANNED for token in banned}}


def _format(request: Request) -> Mapping[str, str]:
    form = request.format
    if form is None:
        return {}
    kind = form["type"]
    if kind == "json_object":
        return {"json_schema": json.dumps({"type": "object"})}
    if kind == "json_schema":
        return {"json_schema": json.dumps(form["json_schema"]["schema"])}
    if kind == "regex":
        return {"regex": form["regex"]}
    if kind == "tool_calls":
        return {"structural_tag": json.dumps(calls_tag(form["tool_calls"]))}
    raise BadInput(f"`response_format` of type {kind} is not possible in this engine")
