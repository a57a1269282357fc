"""Formats of a reply in the terms of xgrammar, which engines take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SPACE = {"type": "regex", "pattern": "[ \\n]*"}


def calls_tag(calls: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the structural tag of a text with tool calls.

    Without `otherwise`, any text may stand beside the calls. Without `begin`, the reply is one call, or a
    text that does not begin with `{`.
    """
    return {"type": "structural_tag", "format": _calls(calls)}


def _calls(calls: Mapping[str, Any]) -> dict[str, Any]:
    begin, otherwise = calls["begin"], calls.get("otherwise")
    call: dict[str, Any] = {"type": "json_schema", "json_schema": calls["schema"]}
    text = {"type": "json_schema", "json_schema": otherwise}
    if not begin:
        beside = {"type": "regex", "pattern": "[^{](.|\\n)*"} if otherwise is None else text
        return {"type": "or", "elements": [call, beside]}
    content = {"type": "sequence", "elements": [_SPACE, call, _SPACE]}
    tag = {"type": "tag", "begin": begin, "content": content, "end": calls["end"]}
    if otherwise is None:
        return {"type": "triggered_tags", "triggers": [begin], "tags": [tag]}
    several = {"type": "plus", "content": {"type": "sequence", "elements": [_SPACE, tag]}}
    return {"type": "or", "elements": [several, text]}
