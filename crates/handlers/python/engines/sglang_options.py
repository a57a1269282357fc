"""Options of a worker as SGLang's own arguments."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

from nsbridge_handler import Fatal

from sglang_api import ServerArgs, sglang

_SERVER = "it belongs to SGLang's server, whose part the gateway does"
_PLAINTEXT = "nothing of a request may be logged or written to a file"
# Arguments that the worker sets or that have no effect in it, with what the operator can do.
REFUSED = {
    "model_path": "the model is `[models] target`",
    "config": "the options are those of [handler.options]",
    "lora_paths": "adapters are named by `[handler] adapters`",
    "enable_custom_logit_processor": "the worker sets it, to continue replies",
    "incremental_streaming_output": "the worker sets it",
    "skip_tokenizer_init": "the worker needs the tokenizer",
    "tokenizer_worker_num": "the worker makes the tokens",
    "preferred_sampling_params": "defaults are those of the model's generation_config.json",
    "allow_auto_truncate": "a prompt is never cut",
    "is_embedding": "the engine sglang answers with text",
    "disaggregation_mode": "a worker does prefill and decode",
    "node_rank": "the worker runs on the first machine",
    "use_ray": "the worker watches SGLang's processes itself",
    **dict.fromkeys(
        (
            "crash_dump_folder",
            "debug_tensor_dump_output_folder",
            "export_metrics_to_file",
            "export_metrics_to_file_dir",
            "log_requests",
            "log_requests_level",
            "log_requests_target",
        ),
        _PLAINTEXT,
    ),
    **dict.fromkeys(
        (
            "admin_api_key",
            "api_key",
            "chat_template",
            "completion_template",
            "default_chat_template_kwargs",
            "enable_cache_report",
            "enable_http2",
            "enable_response_store",
            "fastapi_root_path",
            "file_storage_path",
            "grpc_mode",
            "grpc_port",
            "hf_chat_template_name",
            "host",
            "reasoning_parser",
            "served_model_name",
            "sidecar",
            "smg_grpc_mode",
            "ssl_ca_certs",
            "ssl_certfile",
            "ssl_keyfile",
            "ssl_keyfile_password",
            "tool_call_parser",
            "tool_server",
            "warmups",
        ),
        _SERVER,
    ),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raises what the base class prints before it ends the process."""
        raise ValueError(message)

    def actions(self) -> dict[str, argparse.Action]:
        """Returns the arguments by all their names, with those of their fields."""
        named = {_name(flag): action for flag, action in self._option_string_actions.items()}
        fields = {action.dest: action for action in named.values()}
        return {**fields, **named}


def server_args(
    models: Mapping[str, Path], options: Mapping[str, Any], adapters: Sequence[str]
) -> ServerArgs:
    """Returns SGLang's arguments. Raises Fatal with one sentence that names the wrong option."""
    kind: Any = sglang("sglang.srt.server_args").ServerArgs
    parser = _Parser(add_help=False)
    kind.add_cli_args(parser)
    argv = [f"--model-path={models['target']}"]
    for name, value in options.items():
        is_draft = name == "speculative_draft_model_path" and value in models
        argv += _checked(parser, name, str(models[value]) if is_draft else value, argv[:1])
    if adapters:
        named = ({"lora_name": name, "lora_path": str(models[name])} for name in adapters)
        argv += ["--lora-paths", *map(json.dumps, named)]
    args: ServerArgs = kind.from_cli_args(parser.parse_args(argv))
    return args


def _checked(parser: _Parser, name: str, value: Any, model: Sequence[str]) -> list[str]:
    """Returns an option as arguments."""
    known = parser.actions()
    action = known.get(name)
    if action is None:
        raise Fatal(f"`{name}` in [handler.options] is no argument of SGLang{_close(name, known)}")
    if action.dest in REFUSED:
        raise Fatal(f"`{name}` in [handler.options] cannot be set: {REFUSED[action.dest]}")
    try:
        own = _argv(action, value)
        parser.parse_args([*model, *own])
    except (ValueError, AssertionError) as error:
        said = " ".join(str(error).split())
        raise Fatal(f"`{name}` in [handler.options] is not valid: {said}") from None
    return own


def _argv(action: argparse.Action, value: Any) -> list[str]:
    flag = action.option_strings[0]
    no = "--no-" + flag[2:]
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError("it must be true or false")
        if value:
            return [flag]
        return [no] if no in action.option_strings else []
    if isinstance(value, list) and action.nargs is not None:
        return [flag, *map(_text, cast("list[object]", value))]
    return [f"{flag}={_text(cast(object, value))}"]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _close(name: str, known: Mapping[str, Any]) -> str:
    names = [f"`{other}`" for other in difflib.get_close_matches(name, known.keys() - REFUSED.keys())]
    return f"; the closest are {' and '.join(names)}" if names else ""
