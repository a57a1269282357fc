"""Text requests as vLLM's sampling parameters.

vLLM's own engine decides where its parameters differ from the protocol's: it looks for `bad_token_sequences`
in the reply alone; a temperature between 0 and 0.01 becomes 0.01; `min_tokens` bans the model's end tokens
also with `ignore_eos`; the rank of a token of the prompt counts all tokens of the same log-probability; and
inside of `response_format` the log-probabilities are those among the allowed tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import vllm.envs as envs
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from nsbridge_handler import BadInput

from engine_format import calls_tag
from engine_request import Request
from engine_text import Call
from vllm_forced import FORCED

# vLLM makes this list of texts; it has no parameter of token ids.
_BANNED = "_bad_words_token_ids"


def sampling_params(call: Call) -> SamplingParams:
    """Returns the parameters of a call. Raises BadInput for what vLLM cannot do."""
    request, sampling = call.request, call.request.sampling
    params = SamplingParams(
        temperature=sampling["temperature"],
        top_p=sampling["top_p"],
        top_k=int(sampling["top_k"]),
        min_p=sampling["min_p"],
        repetition_penalty=sampling["repetition_penalty"],
        frequency_penalty=sampling["frequency_penalty"],
        presence_penalty=sampling["presence_penalty"],
        seed=call.seed,
        max_tokens=call.max_tokens,
        min_tokens=call.min_tokens,
        ignore_eos=request.ignore_eos,
        stop_token_ids=list(request.stop_token_ids),
        logit_bias=dict(request.logit_bias) or None,
        logprobs=request.logprobs,
        prompt_logprobs=call.prompt_logprobs,
        structured_outputs=_structured(request.format) if request.format is not None else None,
        extra_args={FORCED: list(call.forced)} if call.forced else None,
        # The texts and the stop sequences are found from the tokens here.
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    _ban(params, request)
    return params


def _ban(params: SamplingParams, request: Request) -> None:
    """Bans tokens by their ids. vLLM's own `bad_words` are texts."""
    banned = [[token] for token in request.bad_token_ids]
    banned += [list(sequence) for sequence in request.bad_token_sequences]
    if not banned:
        return
    words, tokens = envs.VLLM_MAX_NUM_BAD_WORDS, envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
    if len(banned) > words or sum(map(len, banned)) > tokens:
        raise BadInput(
            f"`bad_token_ids` and `bad_token_sequences` must be at most {words} with {tokens} tokens "
            "together in this engine"
        )
    if not hasattr(params, _BANNED):
        raise BadInput("`bad_token_ids` and `bad_token_sequences` are not possible in this version of vLLM")
    setattr(params, _BANNED, banned)


def _structured(form: Mapping[str, Any]) -> StructuredOutputsParams:
    kind = form["type"]
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "json_schema":
        return StructuredOutputsParams(json=json.dumps(form["json_schema"]["schema"]))
    if kind == "regex":
        return StructuredOutputsParams(regex=form["regex"])
    if kind == "tool_calls":
        return StructuredOutputsParams(structural_tag=json.dumps(calls_tag(form["tool_calls"])))
    raise BadInput(f"`response_format` of type {kind} is not possible in this engine")
