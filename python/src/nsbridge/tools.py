"""Calls of tools: formats that force a call, and calls in the text of a reply."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import InvalidRequest

# As Hermes and Qwen write calls. A call without its closing tag is a call if its JSON is complete.
CALL = re.compile(r"\s*<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|\Z)\s*", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """Call of a tool. `arguments` is the text of a JSON object."""

    name: str
    arguments: str


def named(choice: Any) -> str | None:
    """Returns the function that a `tool_choice` names; None for `required`."""
    if choice == "required":
        return None
    try:
        return str(choice["function"]["name"])
    except (TypeError, KeyError):
        raise InvalidRequest(
            "`tool_choice` is `none`, `auto`, `required`, or names a function"
        ) from None


def forced_format(tools: Sequence[Mapping[str, Any]], choice: Any) -> dict[str, Any]:
    """Returns the `response_format` that makes a reply a call of the chosen function."""
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    name = named(choice)
    if name is not None and name not in functions:
        raise InvalidRequest("`tool_choice` names none of the request's `tools`")
    if not functions:
        raise InvalidRequest("`tool_choice` needs `tools`")
    chosen = [name] if name is not None else list(functions)
    schemas = [call_schema(functions[function]) for function in chosen]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def call_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of a call of a function."""
    arguments = dict(function.get("parameters") or {"type": "object"})
    if "$ref" in json.dumps(arguments):
        raise InvalidRequest(
            f"the parameters of `{function['name']}` have a `$ref`: write its schema in its place"
        )
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def split(text: str, forced: bool) -> tuple[str, list[Call]]:
    """Returns the content of a reply without its calls, and the calls."""
    if forced:
        call = read_call(text)
        return ("", [call]) if call else (text, [])
    calls: list[Call] = []

    def take(match: re.Match[str]) -> str:
        call = read_call(match.group(1))
        if call is None:
            return match.group(0)
        calls.append(call)
        return ""

    return CALL.sub(take, text), calls


def read_call(text: str) -> Call | None:
    """Reads a JSON object with `name` and `arguments`; None if it is no call."""
    try:
        value = json.loads(text)
        name, arguments = value["name"], value.get("arguments", {})
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return Call(name, json.dumps(arguments, ensure_ascii=False, separators=(",", ":")))
