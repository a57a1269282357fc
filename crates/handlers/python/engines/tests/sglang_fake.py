"""Stand-in for SGLang, which refuses every call that the recorded interface does not have.

Its model depends on all tokens before, its penalty on the reply's tokens alone, and its grammar is a text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

API: dict[str, Any] = json.loads(Path(__file__).with_name("sglang_api.json").read_text())
END, FIRST, LETTERS = 2, 10, 26
CONTEXT, VOCABULARY = 96, FIRST + LETTERS
JSON = '{"a":1}'
EXTRA = '{}":1'

WORDS = {chr(ord("a") + place): FIRST + place for place in range(LETTERS)}
WORDS.update((letter, 3 + place) for place, letter in enumerate(EXTRA))
DOCUMENT = {
    "model": {"vocab": WORDS},
    "decoder": {"type": "ByteLevel"},
    "added_tokens": [{"id": END, "content": "</s>", "special": True}],
}


def _human(text: str) -> int:
    return int(text[:-2]) << 10 if text.endswith("Ki") else int(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "<human_readable_int>": _human,
    "<json.loads>": json.loads,
    "<json_list_type>": json.loads,
    "<nullable_str>": str,
}
_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float}


class _JsonAction(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, [json.loads(value) for value in values])


def _argument(field: dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords of an argument, as SGLang derives them from a field."""
    kind: str = field["type"].removeprefix("Optional[")
    kind = kind.removesuffix("]") if kind != field["type"] else kind
    action, parser = field.get("action"), _PARSERS.get(field.get("type_parser", ""))
    if action == "<argparse.BooleanOptionalAction>":
        return {"action": argparse.BooleanOptionalAction}
    if action is not None:
        return {"action": _JsonAction, "nargs": "*"}
    if kind == "bool":
        return {"action": "store_true"}
    choices = field.get("choices")
    made: dict[str, Any] = {"choices": choices} if isinstance(choices, list) else {}
    if kind.startswith("List[") and parser is None:
        return {**made, "type": _TYPES.get(kind[5:-1], str), "nargs": field.get("nargs", "+")}
    return {**made, "type": parser or _TYPES.get(kind, str), "nargs": field.get("nargs")}


class ServerArgs:
    """Arguments of SGLang."""

    enable_custom_logit_processor: bool
    incremental_streaming_output: bool
    custom_sigquit_handler: Any

    def __init__(self, **fields: Any) -> None:
        for name, field in API["server_args"].items():
            setattr(self, name, fields.get(name, field.get("default")))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in API["server_args"]:
            raise AttributeError(f"ServerArgs has no field {name}")
        super().__setattr__(name, value)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        for name, field in API["server_args"].items():
            if field["flags"]:
                wanted: dict[str, Any] = {"default": field.get("default"), "required": "default" not in field}
                parser.add_argument(*field["flags"], dest=name, **_argument(field), **wanted)
        for flag, field in API["server_args_flags"].items():
            if "action" in field and "nargs" not in field:
                parser.add_argument(flag, action="store_true")
            else:
                parser.add_argument(flag)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> ServerArgs:
        return cls(**{name: getattr(args, name) for name in API["server_args"] if hasattr(args, name)})

    def resolved_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def _check(signature: dict[str, Any], arguments: Sequence[str]) -> None:
    unknown = set(arguments) - set(signature["parameters"])
    if unknown and not signature["any"]:
        raise TypeError(f"unexpected arguments {sorted(unknown)}")


class Only(SimpleNamespace):
    """Object whose attributes are those of a recorded list alone."""

    def __init__(self, names: str, **attributes: Any) -> None:
        assert attributes.keys() <= set(API[names]), attributes.keys() - set(API[names])
        super().__init__(**attributes)


class Tokenizer:
    """Tokenizer with a letter for each token."""

    eos_token_id = END
    additional_stop_token_ids = None
    chat_template = "letters"
    special_tokens_map = {"eos_token": "</s>"}
    backend_tokenizer = SimpleNamespace(to_str=lambda: json.dumps(DOCUMENT))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [WORDS[letter] for letter in text]

    def apply_chat_template(self, conversation: list[dict[str, Any]], **variables: Any) -> str:
        return "".join(message["content"] for message in conversation)


class Rows:
    """Logits of several requests."""

    def __init__(self, rows: list[list[float]]) -> None:
        self.rows = rows

    def __setitem__(self, place: tuple[int, Any], value: float) -> None:
        row, column = place
        if isinstance(column, slice):
            self.rows[row] = [value] * len(self.rows[row])
        else:
            self.rows[row][column] = value


class Engine:
    """SGLang without its processes."""

    steps = 1

    def __init__(self, *, server_args: ServerArgs) -> None:
        self.server_args = server_args
        self.asked: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.alive: dict[str, bool] = {}
        self.stuck = self.closed = False
        self.end: dict[str, Any] = {}
        self.tokenizer_manager = Only(
            "manager_attributes",
            tokenizer=Tokenizer(),
            model_config=Only(
                "model_config_attributes",
                vocab_size=VOCABULARY,
                context_len=CONTEXT + 6,
                hf_eos_token_id={END},
                get_default_sampling_params=lambda: {"temperature": 0.0},
            ),
            max_req_input_len=CONTEXT,
            num_reserved_tokens=0,
            abort_request=self._abort,
            load_snapshot_reader=SimpleNamespace(
                read_all=lambda: [
                    Only("load_snapshot", num_running_reqs=2, num_waiting_reqs=1, token_usage=0.5)
                ]
            ),
        )

    def get_all_child_pids(self) -> list[int]:
        return [1]

    def shutdown(self) -> None:
        self.closed = True

    def _abort(self, rid: str) -> None:
        if rid in self.alive:
            self.aborted += [other for other in self.alive if other.startswith(rid)]

    async def async_generate(self, **arguments: Any) -> AsyncGenerator[Any, None]:
        _check(API["engine"]["async_generate"], list(arguments))
        unknown = arguments["sampling_params"].keys() - set(API["sampling_params"])
        assert not unknown, unknown
        self.asked.append(arguments)
        return self._outputs(arguments)

    async def _outputs(self, arguments: dict[str, Any]) -> AsyncGenerator[Any, None]:
        rid, params = arguments["rid"], arguments["sampling_params"]
        if params["repetition_penalty"] > 2:
            raise ValueError("repetition_penalty must be in (0, 2]")
        if rid in self.alive:
            raise ValueError(f"Duplicate request ID detected: {rid}")
        self.alive[rid] = True
        try:
            reply, told = list[int](), 0
            end = None
            while end is None:
                await asyncio.sleep(0)
                if self.stuck:
                    await asyncio.Event().wait()
                reply.append(self._next(arguments, reply))
                end = self.end or _end(reply, params)
                if end or len(reply) - told >= self.steps:
                    yield self._output(arguments, reply, told, end)
                    told = len(reply)
        finally:
            del self.alive[rid]

    def _next(self, arguments: dict[str, Any], reply: list[int]) -> int:
        params, prompt = arguments["sampling_params"], arguments["input_ids"]
        rows = Rows([_logits(prompt, reply, params)])
        processor = arguments.get("custom_logit_processor")
        if processor is not None:
            assert self.server_args.enable_custom_logit_processor
            cache = SimpleNamespace(kv_committed_len=len(prompt) + len(reply))
            request = SimpleNamespace(kv=cache, origin_input_ids=prompt, output_ids=reply[:-1])
            PROCESSORS[processor]()(rows, [{**(params.get("custom_params") or {}), "__req__": request}])
        return max(range(VOCABULARY), key=rows.rows[0].__getitem__)

    def _output(self, arguments: dict[str, Any], reply: list[int], told: int, end: Any) -> Any:
        prompt = arguments["input_ids"]
        meta = {
            "id": arguments["rid"],
            "finish_reason": end,
            "prompt_tokens": len(prompt),
            "weight_version": "default",
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": len(reply),
            "cached_tokens": 4,
        }
        since = told if self.server_args.incremental_streaming_output else 0
        if arguments["return_logprob"]:
            meta.update(_logprobs(arguments, reply, since))
        assert meta.keys() <= set(API["meta_info"])
        return {"text": "", "output_ids": reply[since:], "meta_info": meta}


def _score(token: int) -> tuple[float, int, None]:
    return (-token / 8, token, None)


def _logprobs(arguments: dict[str, Any], reply: list[int], since: int) -> dict[str, Any]:
    prompt, start, top = arguments["input_ids"], arguments["logprob_start_len"], arguments["top_logprobs_num"]
    scored: list[Any] = [_score(token) for token in prompt[start:]] if start >= 0 else []
    if start == 0:
        scored[0] = (None, prompt[0], None)
    made: dict[str, Any] = {
        "input_token_logprobs": scored,
        "output_token_logprobs": [_score(token) for token in reply[since:]],
        "output_token_logprobs_length": len(reply),
    }
    if top > 0:
        row = [_score(token) for token in range(top)]
        made["input_top_logprobs"] = [None if value is None else row for value, _, _ in scored]
        made["output_top_logprobs"] = [row for _ in reply[since:]]
    return made


def _logits(prompt: list[int], reply: list[int], params: dict[str, Any]) -> list[float]:
    row = [0.0] * VOCABULARY
    if "json_schema" in params:
        row = [float("-inf")] * VOCABULARY
        row[WORDS[JSON[len(reply)]] if len(reply) < len(JSON) else END] = 1.0
    else:
        first = 7
        for token in [*prompt, *reply]:
            first = (first * 31 + token) % 1009
        for place in range(LETTERS):
            row[FIRST + (first + place) % LETTERS] = 2.0 - place / LETTERS
        if params["repetition_penalty"] != 1.0:
            for token in reply:
                row[token] = -1.0
    for token, bias in params.get("logit_bias", {}).items():
        row[int(token)] += bias
    if len(reply) < params["min_new_tokens"]:
        row[END] = float("-inf")
    return row


def _end(reply: list[int], params: dict[str, Any]) -> Any:
    if not params["ignore_eos"] and reply[-1] in {END, *params["stop_token_ids"]}:
        return reason("FINISH_MATCHED_TOKEN", matched=reply[-1])
    if len(reply) >= params["max_new_tokens"]:
        return reason("FINISH_LENGTH", length=len(reply))
    return None


def reason(name: str, **fields: Any) -> dict[str, Any]:
    """Returns a reason of an end as SGLang's outputs have it."""
    made: dict[str, Any] = {**API["reasons"][name]}
    assert fields.keys() <= made.keys()
    return {key: fields.get(key) if str(value).startswith("<") else value for key, value in made.items()}


PROCESSORS: dict[str, Any] = {}


class CustomLogitProcessor:
    """Base class of processors."""

    @classmethod
    def to_str(cls) -> str:
        PROCESSORS[cls.__name__] = cls
        return cls.__name__


def _module(name: str, **values: Any) -> None:
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(values)


for _name in ("sglang", "sglang.srt", "sglang.srt.sampling", "sglang.srt.entrypoints"):
    _module(_name)
_module("sglang.version", __version__=API["version"])
_module("sglang.srt.server_args", ServerArgs=ServerArgs)
_module("sglang.srt.entrypoints.engine", Engine=Engine)
_module("sglang.srt.sampling.custom_logit_processor", CustomLogitProcessor=CustomLogitProcessor)
