"""Objects in the shapes of OpenAI's Python client."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from .text import Embeddings, TextPiece, Usage
from .tools import Call


@dataclass(frozen=True)
class Function:
    """Function that a model calls, with its arguments as the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ToolCall:
    """Call of a tool."""

    id: str
    function: Function
    type: Literal["function"] = "function"


@dataclass(frozen=True)
class Message:
    """Message of a model."""

    content: str | None
    tool_calls: list[ToolCall] | None = None
    role: Literal["assistant"] = "assistant"


@dataclass(frozen=True)
class Choice:
    """One reply."""

    index: int
    message: Message
    finish_reason: str


@dataclass(frozen=True)
class CompletionUsage:
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Tokens of prompt and reply."""
        return self.prompt_tokens + self.completion_tokens

    @classmethod
    def of(cls, usage: Usage) -> CompletionUsage:
        """Returns the numbers of a reply."""
        return cls(usage.input_tokens, usage.output_tokens)


@dataclass(frozen=True)
class ChatCompletion:
    """Complete reply of a chat."""

    id: str
    model: str
    choices: list[Choice]
    usage: CompletionUsage
    created: int = field(default_factory=lambda: int(time.time()))
    object: Literal["chat.completion"] = "chat.completion"


@dataclass(frozen=True)
class Delta:
    """Part of a message."""

    content: str | None = None
    role: str | None = None


@dataclass(frozen=True)
class ChunkChoice:
    """Part of one reply."""

    index: int
    delta: Delta
    finish_reason: str | None = None


@dataclass(frozen=True)
class ChatCompletionChunk:
    """Part of a streamed reply. The last one has the usage."""

    id: str
    model: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


@dataclass(frozen=True)
class EmbeddingData:
    """Vector of a text."""

    index: int
    embedding: list[float]


@dataclass(frozen=True)
class EmbeddingResponse:
    """Vectors of texts, in the order of the texts."""

    model: str
    data: list[EmbeddingData]
    usage: CompletionUsage


def tool_call(index: int, number: int, call: Call) -> ToolCall:
    """Returns a call in OpenAI's shape; its id is unique within the reply."""
    return ToolCall(f"call_{index}_{number}", Function(call.name, call.arguments))


def reason_of(reason: str) -> str:
    """Returns OpenAI's name of a finish reason."""
    return reason if reason in ("length", "content_filter") else "stop"


def chunk(id: str, model: str, piece: TextPiece, first: bool) -> ChatCompletionChunk:
    """Returns a piece as a chunk."""
    delta = Delta(piece.text, "assistant" if first else None)
    reason = reason_of(piece.finish_reason) if piece.finish_reason else None
    return ChatCompletionChunk(f"chatcmpl-{id}", model, [ChunkChoice(piece.index, delta, reason)])


def last_chunk(id: str, model: str, many: bool, reason: str, usage: Usage) -> ChatCompletionChunk:
    """Returns the chunk after the last piece."""
    ended = [] if many else [ChunkChoice(0, Delta(), reason_of(reason))]
    return ChatCompletionChunk(f"chatcmpl-{id}", model, ended, CompletionUsage.of(usage))


def vectors(model: str, made: Embeddings) -> EmbeddingResponse:
    """Returns embeddings in OpenAI's shape."""
    data = [EmbeddingData(index, vector) for index, vector in enumerate(made.vectors)]
    return EmbeddingResponse(model, data, CompletionUsage.of(made.usage))
