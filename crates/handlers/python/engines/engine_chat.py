"""Messages of a chat in the form that a chat template takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from nsbridge_handler import BadInput


@dataclass(frozen=True)
class CallShape:
    """Form in which a template takes the calls of earlier messages."""

    null_content: bool = False
    """True if the content of a message with calls alone is null, which templates tell from an empty text."""
    text_arguments: bool = False
    """True if the arguments of a call are text, not an object."""


@dataclass
class Chat:
    """Chat of a request."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: dict[str, Any]
    begins: bool
    """True if the model's turn begins after the last message."""
    continues: bool
    """True if the text of the last message goes on."""

    @classmethod
    def read(cls, input: Mapping[str, Any], shape: CallShape) -> Chat:
        """Returns the chat of an input. Raises BadInput with the name of the first invalid field."""
        continues = bool(input.get("continue_final_message"))
        begins = input.get("add_generation_prompt")
        if continues and begins:
            raise BadInput("`continue_final_message` needs `add_generation_prompt` to be false")
        variables = dict(input.get("chat_template_kwargs") or {})
        if input.get("reasoning_effort") is not None:
            variables["reasoning_effort"] = input["reasoning_effort"]
        messages = [shown(message, shape) for message in input["messages"]]
        tools: list[dict[str, Any]] = input.get("tools") or []
        return cls(messages, tools, variables, not continues if begins is None else begins, continues)

    def cut(self, rendered: str) -> str:
        """Cuts a rendered chat after the text of the last message, if that text goes on."""
        if not self.continues:
            return rendered
        begin = _last_text(self.messages[-1].get("content")).lstrip()
        text = begin.rstrip()
        at = rendered.rfind(text) if text else -1
        if at < 0:
            raise BadInput(
                "`continue_final_message` needs a last message whose text the model's chat template shows"
            )
        # Most templates trim a text; some keep the spaces at its end.
        return rendered[: at + len(begin if rendered.startswith(begin, at) else text)]


def shown(message: Mapping[str, Any], shape: CallShape) -> dict[str, Any]:
    """Returns a message as templates expect it."""
    value = {name: part for name, part in message.items() if part not in (None, [])}
    value["content"] = _shown_content(message.get("content"))
    if "tool_calls" in value:
        value["tool_calls"] = [_call(call, shape) for call in value["tool_calls"]]
        if shape.null_content and not value["content"]:
            value["content"] = None
    return value


def _shown_content(content: Any) -> str | list[dict[str, str]]:
    """Returns a content as a text, or as parts if an image is among them. Texts are joined by line ends."""
    if not isinstance(content, list):
        return content or ""
    parts = [_shown_part(part) for part in cast("list[dict[str, str]]", content)]
    if all("text" in part for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _shown_part(part: Mapping[str, str]) -> dict[str, str]:
    return {"type": "text", "text": part["text"]} if part["type"] == "text" else {"type": "image"}


def _last_text(content: Any) -> str:
    if isinstance(content, list):
        parts = cast("list[dict[str, str]]", content)
        return parts[-1].get("text", "") if parts else ""
    return content or ""


def _call(call: Mapping[str, Any], shape: CallShape) -> dict[str, Any]:
    function = dict(call["function"])
    if not shape.text_arguments:
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            arguments = None
        if isinstance(arguments, dict):
            function["arguments"] = arguments
    return {"id": call.get("id", ""), "type": call.get("type", "function"), "function": function}


def with_call(shape: CallShape) -> list[dict[str, Any]]:
    """Returns a conversation with a call and its result."""
    function = {"name": "look", "arguments": '{"at":"sea"}'}
    messages: Sequence[dict[str, Any]] = (
        {"role": "user", "content": "hello"},
        {"role": "assistant", "tool_calls": [{"id": "call00001", "function": function}]},
        {"role": "tool", "content": "calm", "name": "look", "tool_call_id": "call00001"},
    )
    return [shown(message, shape) for message in messages]
