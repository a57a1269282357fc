"""Options of a worker as vLLM's own engine arguments."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from nsbridge_handler import Fatal
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

# Arguments that the worker sets, with what the operator can do.
REFUSED = {
    "model": "the model is `[models] target`",
    "enable_log_requests": "nothing of a request may be logged",
    "disable_log_stats": "the worker's metrics are made of these statistics",
    "logprobs_mode": "clients get the log-probabilities of the model's own distribution",
    "skip_tokenizer_init": "the worker needs the tokenizer",
}


class _Parser(FlexibleArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raises what the base class prints before it ends the process."""
        raise ValueError(message)


def engine_args(model: Path, options: Mapping[str, Any]) -> AsyncEngineArgs:
    """Returns vLLM's arguments. Raises Fatal with one sentence that names the wrong option."""
    # vLLM's own code has no types here.
    parser: Any = AsyncEngineArgs.add_cli_args(cast(Any, _Parser)(add_help=False))
    known = cast("dict[str, Any]", vars(parser.parse_args([])))
    argv = [f"--model={model}"]
    for name, value in options.items():
        if name in REFUSED:
            raise Fatal(f"`{name}` in [handler.options] cannot be set: {REFUSED[name]}")
        if name not in known:
            close = _close(name, known)
            raise Fatal(f"`{name}` in [handler.options] is no engine argument of vLLM{close}")
        own = _argv(name, value)
        try:
            parser.parse_args(own)
        except ValueError as error:
            why = " ".join(str(error).split())
            raise Fatal(f"`{name}` in [handler.options] is not valid: {why}") from None
        argv += own
    args: AsyncEngineArgs = AsyncEngineArgs.from_cli_args(parser.parse_args(argv))
    return args


def _argv(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, dict):
        return [f"--{flag}={json.dumps(value)}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(str, cast("list[object]", value))]
    return [f"--{flag}={value}"]


def _close(name: str, known: Mapping[str, Any]) -> str:
    names = [f"`{other}`" for other in difflib.get_close_matches(name, known)]
    return f"; the closest are {' and '.join(names)}" if names else ""
