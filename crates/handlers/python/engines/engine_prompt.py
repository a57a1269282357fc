"""Tokens of a prompt: of a raw text, of token ids, or of a chat by the model's own chat template."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, Optional, Protocol

from nsbridge_handler import BadInput

from engine_chat import CallShape, Chat, with_call
from engine_guard import Guard

# Maximum bytes of a prompt per token of the context, and for any context.
BYTES_PER_TOKEN = 16
FEW_BYTES = 64 << 10

# Variables that a request cannot set, beside the special tokens and what the renderer takes itself.
_OWN = ("messages", "bos_token", "eos_token", "strftime_now", "raise_exception")


Place = Optional[Callable[[list[dict[str, Any]]], None]]


class ChatTokenizer(Protocol):
    """Fast tokenizer of transformers, as far as it is used here."""

    @property
    def chat_template(self) -> object:
        """Template or templates, or None."""
        ...

    @property
    def special_tokens_map(self) -> Mapping[str, object]:
        """Special tokens by the names of their variables."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Returns the tokens of a text."""
        ...

    def apply_chat_template(self, conversation: list[dict[str, Any]], **variables: Any) -> Any:
        """Returns the rendered text with `tokenize=False`."""
        ...


class Prompter:
    """Maker of prompts."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        guard: Guard,
        encode_guarded: Callable[[str], list[int]],
        context: int,
    ) -> None:
        """`encode_guarded` tokenizes a rendered chat with the guard's marks."""
        self._tokenizer, self._guard, self._context = tokenizer, guard, context
        self._encode_guarded = encode_guarded
        self._reserved = {*_parameters(tokenizer), *_OWN, *tokenizer.special_tokens_map}
        self._shape = self._probed() if tokenizer.chat_template else CallShape()

    def tokens(self, input: Mapping[str, Any], submitted_at: float, place: Place = None) -> list[int]:
        """Returns the tokens of a prompt, at least one. Raises BadInput without any text of the request.

        `place` gives the messages of a chat the form of a model that takes images.
        """
        text, ids, messages = input.get("prompt"), input.get("prompt_token_ids"), input.get("messages")
        if (text is not None) + bool(ids) + bool(messages) != 1:
            raise BadInput("give exactly one of `prompt`, `prompt_token_ids` and `messages`")
        if ids:
            return list(ids)
        if messages:
            return self._chat(input, submitted_at, place)
        self._refuse_long("prompt", text or "")
        tokens = self._tokenizer.encode(text or "", add_special_tokens=True)
        if not tokens:
            raise BadInput("`prompt` has no token to go on from")
        return tokens

    def _chat(self, input: Mapping[str, Any], submitted_at: float, place: Place) -> list[int]:
        if not self._tokenizer.chat_template:
            raise BadInput("this model has no chat template: give `prompt`, not `messages`")
        for name in input.get("chat_template_kwargs") or ():
            if name in self._reserved:
                raise BadInput(f"`chat_template_kwargs` must not set `{name}`, which the worker sets")
        chat = Chat.read(input, self._shape)
        marked = self._guard.protect(chat)
        try:
            if place is not None:
                place(chat.messages)
            rendered = self._rendered(chat, submitted_at)
        except Exception as error:
            why = str(error)[:300] or type(error).__name__
            raise BadInput(f"`messages` do not fit the model's chat template: {why}") from None
        text = chat.cut(rendered)
        self._refuse_long("messages", text)
        if marked:
            return self._encode_guarded(text)
        # The template has written the special tokens itself.
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _rendered(self, chat: Chat, submitted_at: float) -> str:
        # A later attempt must render the same prompt, so the date is that of the request.
        now = datetime.fromtimestamp(submitted_at, timezone.utc)
        rendered = self._tokenizer.apply_chat_template(
            chat.messages,
            tools=chat.tools or None,
            add_generation_prompt=chat.begins,
            tokenize=False,
            strftime_now=now.strftime,
            **chat.variables,
        )
        return str(rendered)

    def _refuse_long(self, field: str, text: str) -> None:
        size, most = len(text.encode()), max(self._context * BYTES_PER_TOKEN, FEW_BYTES)
        if size > most:
            raise BadInput(
                f"`{field}` has {size} bytes, and {most} are the most for this model's context of "
                f"{self._context} tokens"
            )

    def _probed(self) -> CallShape:
        """Returns the form in which the template takes calls, from what it makes of one in each form."""

        def written(shape: CallShape) -> str | None:
            try:
                return self._rendered(Chat(with_call(shape), [], {}, True, False), 0.0)
            except Exception:
                return None

        as_text = CallShape(text_arguments=True)
        empty = as_text if written(CallShape()) is None and written(as_text) is not None else CallShape()
        null = CallShape(null_content=True, text_arguments=empty.text_arguments)
        of_empty, of_null = written(empty), written(null)
        if of_null is None:
            return empty
        # A template that writes the null takes texts alone.
        nulls = ("None", "null")
        same = of_empty is None or all(of_empty.count(word) == of_null.count(word) for word in nulls)
        return null if same else empty


def _parameters(tokenizer: ChatTokenizer) -> set[str]:
    """Returns the names of what the renderer takes itself, a template among them.

    vLLM overrides the method by one that takes anything, so the base classes count too.
    """
    methods = (vars(kind).get("apply_chat_template") for kind in type(tokenizer).__mro__)
    return {name for method in methods if method for name in inspect.signature(method).parameters}
