"""Shapes of OpenAI's Python client over this one, for programs that were written for it.

    chat = nsbridge.openai.OpenAI(client).chat.completions
    answer = chat.create(model="smollm2", messages=[{"role": "user", "content": "Hello"}])
    print(answer.choices[0].message.content)

Only chat completions and embeddings are here; the gateway serves the rest of the interface.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Literal, Union, overload

from .aio import AsyncClient
from .client import Client
from .errors import InvalidRequest
from .shapes import (
    ChatCompletion,
    ChatCompletionChunk,
    Choice,
    CompletionUsage,
    EmbeddingResponse,
    Message,
    chunk,
    last_chunk,
    reason_of,
    tool_call,
    vectors,
)
from .text import Result, TextPiece
from .tools import forced_format, split

Messages = Sequence[Mapping[str, Any]]
OWN = ("tenant", "seed", "revision", "bulk", "timeout", "id", "trace")


class _Asked:
    """Request in OpenAI's shape, translated to the bridge's input."""

    def __init__(self, messages: Messages, options: dict[str, Any]):
        self.messages = list(messages)
        self.own = {name: options.pop(name) for name in OWN if name in options}
        options.pop("stream_options", None)
        if "max_completion_tokens" in options:
            options.setdefault("max_tokens", options.pop("max_completion_tokens"))
        if isinstance(options.get("stop"), str):
            options["stop"] = [options["stop"]]
        bias = options.get("logit_bias")
        if bias is not None:
            options["logit_bias"] = {str(token): value for token, value in bias.items()}
        choice = options.pop("tool_choice", None)
        self.tools, self.forced = options.get("tools"), False
        if choice == "none":
            options.pop("tools", None)
            self.tools = None
        elif choice not in (None, "auto"):
            options["response_format"] = forced_format(self.tools or [], choice)
            self.forced = True
        self.options = {name: value for name, value in options.items() if value is not None}

    def completion(self, id: str, model: str, result: Result[TextPiece]) -> ChatCompletion:
        """Returns the complete reply."""
        count = self.options.get("n") or 1
        choices = [self._choice(index, count, result) for index in range(count)]
        usage = CompletionUsage.of(result.summary.usage)
        return ChatCompletion(f"chatcmpl-{id}", model, choices, usage)

    def _choice(self, index: int, count: int, result: Result[TextPiece]) -> Choice:
        pieces = [piece for piece in result.pieces if piece.index == index]
        ended = [piece.finish_reason for piece in pieces if piece.finish_reason]
        reason = reason_of(ended[-1] if ended and count > 1 else result.summary.finish_reason)
        text = "".join(piece.text for piece in pieces)
        content, calls = split(text, self.forced) if self.tools else (text, [])
        if not calls:
            return Choice(index, Message(text), reason)
        named = [tool_call(index, number, call) for number, call in enumerate(calls)]
        return Choice(index, Message(content or None, named), "tool_calls")


class _Completions:
    def __init__(self, client: Client):
        self._client = client

    @overload
    def create(
        self, *, model: str, messages: Messages, stream: Literal[False] = False, **options: Any
    ) -> ChatCompletion: ...
    @overload
    def create(
        self, *, model: str, messages: Messages, stream: Literal[True], **options: Any
    ) -> Iterator[ChatCompletionChunk]: ...
    def create(
        self, *, model: str, messages: Messages, stream: bool = False, **options: Any
    ) -> Union[ChatCompletion, Iterator[ChatCompletionChunk]]:
        """Returns the reply of a chat, or an iterator of its chunks."""
        asked = _Asked(messages, options)
        reply = self._client.text(model, asked.messages, **asked.own, **asked.options)
        if not stream:
            return asked.completion(reply.id or "", model, reply.collect())
        if asked.forced:
            reply.cancel()
            raise InvalidRequest("a forced tool call cannot be streamed: leave out `stream`")

        def chunks() -> Iterator[ChatCompletionChunk]:
            with reply:
                for number, piece in enumerate(reply):
                    yield chunk(reply.id or "", model, piece, number == 0)
                end = reply.summary
                if end is not None:
                    many = asked.options.get("n", 1) > 1
                    yield last_chunk(reply.id or "", model, many, end.finish_reason, end.usage)

        return chunks()


class _AsyncCompletions:
    def __init__(self, client: AsyncClient):
        self._client = client

    @overload
    async def create(
        self, *, model: str, messages: Messages, stream: Literal[False] = False, **options: Any
    ) -> ChatCompletion: ...
    @overload
    async def create(
        self, *, model: str, messages: Messages, stream: Literal[True], **options: Any
    ) -> AsyncIterator[ChatCompletionChunk]: ...
    async def create(
        self, *, model: str, messages: Messages, stream: bool = False, **options: Any
    ) -> Union[ChatCompletion, AsyncIterator[ChatCompletionChunk]]:
        """Returns the reply of a chat, or an iterator of its chunks."""
        asked = _Asked(messages, options)
        if stream and asked.forced:
            raise InvalidRequest("a forced tool call cannot be streamed: leave out `stream`")
        reply = await self._client.text(model, asked.messages, **asked.own, **asked.options)
        if not stream:
            return asked.completion(reply.id or "", model, await reply.collect())

        async def chunks() -> AsyncIterator[ChatCompletionChunk]:
            async with reply:
                first = True
                async for piece in reply:
                    yield chunk(reply.id or "", model, piece, first)
                    first = False
                end = reply.summary
                if end is not None:
                    many = asked.options.get("n", 1) > 1
                    yield last_chunk(reply.id or "", model, many, end.finish_reason, end.usage)

        return chunks()


class _Embeddings:
    def __init__(self, client: Client):
        self._client = client

    def create(
        self, *, model: str, input: str | Sequence[str], **options: Any
    ) -> EmbeddingResponse:
        """Returns the vectors of texts."""
        options.pop("encoding_format", None)
        return vectors(model, self._client.embed(model, input, **options))


class _AsyncEmbeddings:
    def __init__(self, client: AsyncClient):
        self._client = client

    async def create(
        self, *, model: str, input: str | Sequence[str], **options: Any
    ) -> EmbeddingResponse:
        """Returns the vectors of texts."""
        options.pop("encoding_format", None)
        return vectors(model, await self._client.embed(model, input, **options))


class _Chat:
    def __init__(self, client: Client):
        self.completions = _Completions(client)


class _AsyncChat:
    def __init__(self, client: AsyncClient):
        self.completions = _AsyncCompletions(client)


class OpenAI:
    """A client with the names of OpenAI's."""

    def __init__(self, client: Client):
        self.chat, self.embeddings = _Chat(client), _Embeddings(client)


class AsyncOpenAI:
    """A client in asyncio with the names of OpenAI's."""

    def __init__(self, client: AsyncClient):
        self.chat, self.embeddings = _AsyncChat(client), _AsyncEmbeddings(client)
