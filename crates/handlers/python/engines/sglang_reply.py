"""Outputs of SGLang as what they add to a reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Optional

from nsbridge_handler import BadInput, Retry

from engine_reply import Score, nothing_left
from engine_text import Call, Delta
from sglang_api import Output, Scored

_MOST_WHY = 300


def delta(output: Output, call: Call, is_first: bool) -> Delta:
    """Converts an output. Raises an error for an end that is no end of a reply."""
    meta = output["meta_info"]
    reason = _reason(meta.get("finish_reason"), call)
    prompt = list[Optional[Score]]()
    if is_first and call.prompt_logprobs is not None:
        given = meta.get("input_token_logprobs", ())
        prompt = _scores(given, meta.get("input_top_logprobs", ()), call.prompt_logprobs)
    scores = list[Score]()
    if call.request.logprobs is not None:
        own = _scores(
            meta.get("output_token_logprobs", ()), meta.get("output_top_logprobs", ()), call.request.logprobs
        )
        scores = [score for score in own if score is not None]
    return Delta(list(output["output_ids"]), scores, prompt, reason, meta.get("cached_tokens"))


def _reason(end: Optional[Mapping[str, Any]], call: Call) -> Optional[str]:
    if end is None:
        return None
    kind, matched = end.get("type"), end.get("matched")
    # SGLang is given no text to stop at: one here tells of numbers that are none, or of a broken model.
    if kind in ("stop", "length") and not isinstance(matched, str):
        return str(kind)
    if end.get("status_code") == HTTPStatus.BAD_REQUEST:
        raise BadInput(why(end.get("message")))
    request = call.request
    bans = request.bad_token_ids or request.bad_token_sequences or request.min_tokens
    if request.format is not None and bans and end.get("status_code") == HTTPStatus.INTERNAL_SERVER_ERROR:
        raise nothing_left(request)
    raise Retry("SGLang ended the reply early")


def _scores(
    given: Sequence[Scored], tops: Sequence[Optional[Sequence[Scored]]], top: int
) -> list[Optional[Score]]:
    """Returns the numbers of each place. The first token of a prompt has none."""
    made = list[Optional[Score]]()
    for place, (logprob, _, _) in enumerate(given):
        row = tops[place] if place < len(tops) else None
        likeliest = sorted((-value, token) for value, token, _ in row or () if value is not None)[:top]
        pairs = [(token, -value) for value, token in likeliest]
        made.append(None if logprob is None else Score(logprob, pairs))
    return made


def why(error: object) -> str:
    """Returns an error of SGLang as one line."""
    return " ".join(str(error).split())[:_MOST_WHY]
