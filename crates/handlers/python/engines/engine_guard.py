"""Protection against special tokens in messages: their text stays text.

A template combines the users' text with its own special tokens into one text. So a mark is inserted after the
first character of each special token's text in a message, before the chat is rendered. The mark is a
character that no text has (a noncharacter, Unicode 23.7). A tokenizer then finds no token in the marked
texts, and drops the marks when it normalizes the rest.

A message can also end in the beginning of a special token, or begin with the end of one, and the template or
the next message can complete it. There a mark is placed at its end or beginning, inside the whitespace that
templates trim. Matching ignores case, so a template may change it.

Messages of `assistant` keep added tokens that are not special, such as `<think>`, because the text of replies
contains them and comes back in a later turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Optional, cast

from nsbridge_handler import BadInput

from engine_chat import Chat

MARK = "\ufdd0"

# Name that no special token has. Templates find the fields of tools by such names.
_PLAIN = re.compile(r"[A-Za-z0-9_]*")

Change = Callable[[str, bool], str]


class Guard:
    """Texts that messages must not turn into tokens."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Creates the guard of the parsed content of a `tokenizer.json`."""
        added = document.get("added_tokens") or ()
        self._added = _Texts(token["content"] for token in added)
        self._special = _Texts(token["content"] for token in added if token["special"])

    def protect(self, chat: Chat) -> bool:
        """Inserts marks into the texts of a chat. Returns true if there is any."""
        marked = False
        taken = False

        def change(text: str, own: bool) -> str:
            nonlocal marked, taken
            taken = taken or MARK in text
            out = (self._special if own else self._added).marked(text)
            marked = marked or out != text
            return out

        _rewrite_chat(chat, change)
        if marked and taken:
            raise BadInput("`messages` have the noncharacter U+FDD0 beside a text of a special token")
        return marked


def guarded(document: Mapping[str, Any]) -> str:
    """Returns a `tokenizer.json` that drops marks, and finds its added tokens before that."""
    own = document.get("normalizer")
    drop = {"type": "Replace", "pattern": {"String": MARK}, "content": ""}
    normalizers = [drop] if own is None else [own, drop]
    added = [{**token, "normalized": False} for token in document.get("added_tokens") or ()]
    normalizer = {"type": "Sequence", "normalizers": normalizers}
    return json.dumps({**document, "normalizer": normalizer, "added_tokens": added})


def encoder(document: Mapping[str, Any]) -> Callable[[str], list[int]]:
    """Returns a function that tokenizes texts with marks. Its tokenizer is made when the first one comes."""

    @cache
    def tokenizer() -> Any:
        kind: Optional[Any] = import_module("tokenizers").Tokenizer
        return cast(Any, kind).from_str(guarded(document))

    def encode(text: str) -> list[int]:
        return list(tokenizer().encode(text, add_special_tokens=False).ids)

    return encode


class _Texts:
    def __init__(self, texts: Iterable[str]) -> None:
        known = sorted(set(texts), key=len, reverse=True)
        pattern = "|".join(map(re.escape, known))
        # A lookahead finds texts that overlap.
        self._finder = re.compile(f"(?=({pattern}))", re.IGNORECASE | re.ASCII) if known else None
        sizes = [(text.lower(), size) for text in known for size in range(1, len(text))]
        self._begins = frozenset(text[:size] for text, size in sizes)
        self._ends = frozenset(text[-size:] for text, size in sizes)
        self._longest = max((len(text) for text in known), default=1) - 1

    def marked(self, text: str) -> str:
        """Returns a text with marks."""
        if self._finder is None:
            return text
        places = {found.start() + 1 for found in self._finder.finditer(text)}
        trimmed = text.strip()
        begin = len(text) - len(text.lstrip())
        sizes = range(1, min(self._longest, len(trimmed)) + 1)
        if any(trimmed[:size].lower() in self._ends for size in sizes):
            places.add(begin)
        if any(trimmed[-size:].lower() in self._begins for size in sizes):
            places.add(begin + len(trimmed))
        parts, start = list[str](), 0
        for place in sorted(places):
            parts.append(text[start:place])
            start = place
        return MARK.join([*parts, text[start:]])


def _rewrite_chat(chat: Chat, change: Change) -> None:
    for message in chat.messages:
        own = message.get("role") == "assistant"
        for name, value in message.items():
            if name == "content" and isinstance(value, list):
                _rewrite_parts(cast("list[dict[str, str]]", value), own, change)
            else:
                message[name] = _rewritten(value, own and name != "role", change)
    chat.tools = [_rewritten(tool, False, change) for tool in chat.tools]
    chat.variables = {name: _rewritten(value, False, change) for name, value in chat.variables.items()}


def _rewrite_parts(parts: list[dict[str, str]], own: bool, change: Change) -> None:
    for part in parts:
        if "text" in part:
            part["text"] = change(part["text"], own)


def _rewritten(value: Any, own: bool, change: Change) -> Any:
    """Returns a value with each text replaced, names of fields included."""
    if isinstance(value, str):
        return change(value, own)
    if isinstance(value, list):
        items: list[Any] = value
        return [_rewritten(item, own, change) for item in items]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {_name(name, own, change): _rewritten(item, own, change) for name, item in fields.items()}
    return value


def _name(name: str, own: bool, change: Change) -> str:
    return name if _PLAIN.fullmatch(name) else change(name, own)
