"""Writes src/arguments.json: the arguments of `vllm serve`, with the types that its parser gives them.

    python generate.py > src/arguments.json

The interpreter is one that has vLLM installed. Tested with vLLM 0.32.
"""

import argparse
import inspect
import json
from typing import Any

import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

# Types of values, by the names of vLLM's functions that read them.
TYPES = {
    "int": "integer",
    "human_readable_int": "count",
    "human_readable_int_or_auto": "count_or_auto",
    "float": "number",
    "str": "string",
    "loads": "json",
    "parse_dataclass": "json",
    "union_dict_and_str": "json_or_string",
}


def inner(parse: Any) -> tuple[Any, bool]:
    """Returns the function within `optional_type` and `parse_type`, and whether None is a value."""
    optional = False
    while getattr(parse, "__name__", "") in ("_optional_type", "_parse_type"):
        optional |= parse.__name__ == "_optional_type"
        parse = inspect.getclosurevars(parse).nonlocals["return_type"]
    return parse, optional


def kind(action: argparse.Action) -> tuple[str, bool]:
    """Returns the type of an argument's values, and whether None is a value."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "boolean", False
    if action.nargs == 0:
        return "switch", False
    if action.nargs == "?":
        return "secret", False
    parse, optional = inner(action.type)
    name = getattr(parse, "__name__", "str") if parse else "str"
    if name == "<lambda>":
        # The name of a backend, of which the parser folds case and dashes, or a text that it splits.
        return ("backend" if action.choices else "string"), optional
    return TYPES[name], optional


def described(action: argparse.Action, engine: set[str]) -> dict[str, Any]:
    """Returns what is known of an argument."""
    values, optional = kind(action)
    long = f"--{action.dest.replace('_', '-')}"
    others = [flag for flag in action.option_strings if flag != long and not flag.startswith("--no-")]
    known: dict[str, Any] = {"group": "engine" if action.dest in engine else "server", "type": values}
    if others:
        known["other_flags"] = others
    if action.nargs == "+":
        known["many"] = True
    if optional and not action.default:
        known["optional"] = True
    if action.choices:
        known["choices"] = [str(choice) for choice in action.choices if choice is not None]
    return known


def main() -> None:
    """Prints one argument a line."""
    engine = {action.dest for action in AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())._actions}
    actions = make_arg_parser(FlexibleArgumentParser())._actions
    named = {action.dest: action for action in actions if action.option_strings and action.dest != "help"}
    lines = [f" {json.dumps(name)}: {json.dumps(described(named[name], engine))}" for name in sorted(named)]
    print(f'{{"vllm": {json.dumps(vllm.__version__)},\n"arguments": {{')
    print(",\n".join(lines))
    print("}}")


if __name__ == "__main__":
    main()
