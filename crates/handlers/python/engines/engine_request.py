"""Parameters of a text request: fills in defaults and refuses invalid values by their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Optional

from nsbridge_handler import BadInput

MOST_REPLIES = 128
MOST_STOPS = 64
MOST_STOP_BYTES = 256
MOST_ROLE_BYTES = 64
MOST_TOP_LOGPROBS = 20

# Values of the sampling parameters that change nothing.
PLAIN: dict[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}


@dataclass(frozen=True)
class Facts:
    """What a request is checked against."""

    penalizes_prompt: ClassVar[bool] = True
    """True if `repetition_penalty` counts the tokens of the prompt."""
    vocabulary: int
    """Number of rows of the model's embedding."""
    context: int
    """Maximum number of tokens of prompt and reply together."""
    ends: frozenset[int]
    """End tokens of the model."""
    defaults: Mapping[str, float]
    """Sampling parameters that the model's authors advise."""
    adapters: Collection[str] = ()
    """Names of the model's adapters."""


@dataclass(frozen=True)
class Request:
    """Checked parameters, which all replies to one prompt share."""

    n: int
    max_tokens: Optional[int]
    min_tokens: int
    ends: frozenset[int]
    """Tokens that end a reply."""
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    sampling: Mapping[str, float]
    """Values of the parameters in `PLAIN`."""
    logit_bias: Mapping[int, float]
    bad_token_ids: tuple[int, ...]
    bad_token_sequences: tuple[tuple[int, ...], ...]
    logprobs: Optional[int]
    """Number of top log-probabilities beside the chosen token's, or None without any."""
    prompt_logprobs: Optional[int]
    echo: bool
    special_texts: bool
    token_texts: bool
    format: Optional[Mapping[str, Any]]
    priority: int
    adapter: Optional[str]
    """Name of the adapter that is applied to the model, or None."""

    @property
    def has_history(self) -> bool:
        """True if a later token depends on the earlier ones of the reply by more than the model."""
        penalties = self.sampling["frequency_penalty"] or self.sampling["presence_penalty"]
        sequences = any(len(sequence) > 1 for sequence in self.bad_token_sequences)
        return self.format is not None or bool(penalties) or sequences

    @property
    def has_prompt_pieces(self) -> bool:
        """True if the reply begins with pieces of the prompt."""
        return self.echo or self.prompt_logprobs is not None


def read_request(input: Mapping[str, Any], facts: Facts) -> Request:
    """Returns the parameters of an input. Raises BadInput with the name of the first invalid field."""
    names = ("bad_token_ids", "stop_token_ids")
    lists: dict[str, list[int]] = {name: input.get(name) or [] for name in names}
    nested: list[list[int]] = input.get("bad_token_sequences") or []
    sequences = tuple(map(tuple, nested))
    biases: dict[str, float] = input.get("logit_bias") or {}
    bias = {int(token): float(value) for token, value in biases.items()}
    given: dict[str, Iterable[int]] = {
        "prompt_token_ids": input.get("prompt_token_ids") or (),
        "logit_bias": bias,
        "bad_token_sequences": [token for sequence in nested for token in sequence],
        **lists,
    }
    _check_tokens(given, facts)
    _check_texts(input)
    defaults = {**PLAIN, **{name: value for name, value in facts.defaults.items() if name in PLAIN}}
    sampling = {name: _first(input.get(name), value) for name, value in defaults.items()}
    _check_sampling(sampling, bias)
    ignore_eos = bool(input.get("ignore_eos"))
    form = input.get("response_format")
    if form is not None and form.get("type") == "text":
        form = None
    if form is not None and ignore_eos:
        raise BadInput("`ignore_eos` is not possible with `response_format` in this engine")
    logprobs = _logprobs(input)
    prompt_logprobs = input.get("prompt_logprobs")
    echo = bool(input.get("echo"))
    if prompt_logprobs is None and echo:
        prompt_logprobs = logprobs
    request = Request(
        n=_first(input.get("n"), 1),
        max_tokens=input.get("max_tokens"),
        min_tokens=input.get("min_tokens") or 0,
        ends=facts.ends.difference(facts.ends if ignore_eos else ()).union(lists["stop_token_ids"]),
        stop=tuple(input.get("stop") or ()),
        stop_token_ids=tuple(lists["stop_token_ids"]),
        ignore_eos=ignore_eos,
        sampling=sampling,
        logit_bias=bias,
        bad_token_ids=tuple(lists["bad_token_ids"]),
        bad_token_sequences=sequences,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        echo=echo,
        special_texts=input.get("skip_special_tokens") is False,
        token_texts=bool(input.get("return_token_texts")),
        format=form,
        priority=input.get("priority") or 0,
        adapter=_adapter(input.get("adapter"), facts),
    )
    _check_request(request)
    return request


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _check_tokens(given: Mapping[str, Iterable[int]], facts: Facts) -> None:
    for field, tokens in given.items():
        if not all(token < facts.vocabulary for token in tokens):
            last = facts.vocabulary - 1
            raise BadInput(f"`{field}` must name tokens of this model, from 0 to {last}")


def _check_texts(input: Mapping[str, Any]) -> None:
    stop = input.get("stop") or ()
    if len(stop) > MOST_STOPS or not all(1 <= len(text.encode()) <= MOST_STOP_BYTES for text in stop):
        raise BadInput(f"`stop` must be at most {MOST_STOPS} texts, of 1 to {MOST_STOP_BYTES} bytes each")
    roles = (message["role"] for message in input.get("messages") or ())
    if any(len(role.encode()) > MOST_ROLE_BYTES for role in roles):
        raise BadInput(f"`role` in `messages` must have at most {MOST_ROLE_BYTES} bytes")


def _check_sampling(sampling: Mapping[str, float], bias: Mapping[int, float]) -> None:
    temperature, repetition = sampling["temperature"], sampling["repetition_penalty"]
    if not (isfinite(temperature) and temperature >= 0):
        raise BadInput("`temperature` must be a number from 0 on")
    if not 0 < sampling["top_p"] <= 1:
        raise BadInput("`top_p` must be above 0 and at most 1")
    if not 0 <= sampling["min_p"] <= 1:
        raise BadInput("`min_p` must be from 0 to 1")
    if not (isfinite(repetition) and repetition > 0):
        raise BadInput("`repetition_penalty` must be a number above 0")
    for name in ("frequency_penalty", "presence_penalty"):
        if not -2 <= sampling[name] <= 2:
            raise BadInput(f"`{name}` must be from -2 to 2")
    if not all(-100 <= value <= 100 for value in bias.values()):
        raise BadInput("`logit_bias` must be from -100 to 100")


def _logprobs(input: Mapping[str, Any]) -> Optional[int]:
    top = input.get("top_logprobs")
    if not input.get("logprobs"):
        if top is not None:
            raise BadInput("`top_logprobs` needs `logprobs` to be true")
        return None
    if top is not None and top > MOST_TOP_LOGPROBS:
        raise BadInput(f"`top_logprobs` must be at most {MOST_TOP_LOGPROBS}")
    return top or 0


def _adapter(name: Optional[str], facts: Facts) -> Optional[str]:
    if name is None or name in facts.adapters:
        return name
    if not facts.adapters:
        raise BadInput("`adapter` is not possible: the model has no adapters")
    raise BadInput(f"`adapter` must be one of {', '.join(sorted(facts.adapters))}")


def _check_request(request: Request) -> None:
    if not 1 <= request.n <= MOST_REPLIES:
        raise BadInput(f"`n` must be from 1 to {MOST_REPLIES}")
    if request.n > 1 and request.has_prompt_pieces:
        raise BadInput("`n` must be 1 with `echo` or `prompt_logprobs`")
    if (request.prompt_logprobs or 0) > MOST_TOP_LOGPROBS:
        raise BadInput(f"`prompt_logprobs` must be at most {MOST_TOP_LOGPROBS}")
    if request.max_tokens == 0 and not request.has_prompt_pieces:
        raise BadInput("`max_tokens` must be at least 1, or 0 with `echo` or `prompt_logprobs`")
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise BadInput("`min_tokens` must be at most `max_tokens`")
    if request.token_texts and request.logprobs is None and not request.has_prompt_pieces:
        raise BadInput("`return_token_texts` needs `logprobs`, `prompt_logprobs` or `echo`")
    if not all(request.bad_token_sequences):
        raise BadInput("`bad_token_sequences` must have at least one token each")
