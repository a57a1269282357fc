"""Input and pieces of models of text, embeddings and judgments."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, Union

from .errors import UnexpectedPiece
from .options import check

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)

Prompt = Union[str, Sequence[int], Sequence[Mapping[str, Any]]]
"""Prompt of a model of text: a text, token ids, or messages with `role` and `content`."""


@dataclass(frozen=True)
class TokenLogprob:
    """Token that was likely at one place, with its log-probability."""

    token: int
    logprob: float
    text: Any = None
    """Text of the token, or its bytes as a list; only with `return_token_texts`."""


@dataclass(frozen=True)
class TextPiece:
    """Token of a reply. `str(piece)` is its text, which may be empty."""

    text: str
    token: int | None = None
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()
    token_text: Any = None
    index: int = 0
    """Number of the reply, if more than one was asked for (`n`)."""
    finish_reason: str | None = None
    """Reason for the end of the reply `index`, in its last piece, if `n` is above 1."""
    prompt: bool = False
    """True for a token of the prompt (`echo`, `prompt_logprobs`)."""
    rank: int | None = None
    """Rank of a token of the prompt among all tokens, from 1."""

    def __str__(self) -> str:
        return self.text

    @classmethod
    def read(cls, piece: bytes) -> TextPiece:
        """Reads a piece of a reply; a JSON string is a piece without a token."""
        value = read_json(piece)
        if isinstance(value, str):
            return cls(printable(value))
        if not isinstance(value, dict) or not isinstance(value.get("text"), str):
            raise UnexpectedPiece("a piece of the reply is no text: use `submit` for this model")
        if len(value) == 2 and "token" in value:
            return cls(printable(value["text"]), value["token"])
        top = tuple(
            TokenLogprob(t["token"], t["logprob"], t.get("text"))
            for t in value.get("top_logprobs") or ()
        )
        names = ("token", "logprob", "token_text", "finish_reason", "rank")
        return cls(
            text=printable(value["text"]),
            top_logprobs=top,
            index=value.get("index", 0),
            prompt=value.get("prompt", False),
            **{name: value.get(name) for name in names},
        )


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens of a request."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True)
class Summary:
    """End of a complete reply."""

    pieces: int
    finish_reason: str
    usage: Usage


@dataclass(frozen=True)
class Embeddings:
    """Vectors of texts, in the order of the texts."""

    vectors: list[list[float]]
    usage: Usage


@dataclass(frozen=True)
class Scores:
    """Scores of a text by label, from 0 to 1."""

    scores: dict[str, float] = field(default_factory=dict)

    def __getitem__(self, label: str) -> float:
        return self.scores[label]

    @property
    def best(self) -> str:
        """Label with the highest score."""
        return max(self.scores, key=lambda label: self.scores[label])


@dataclass(frozen=True)
class Result(Generic[P_co]):
    """Complete reply: its pieces and its end."""

    pieces: Sequence[P_co]
    summary: Summary

    @property
    def text(self) -> str:
        """Text of the pieces, joined; the first reply if there is more than one."""
        return join(self.pieces)


def join(pieces: Sequence[Any]) -> str:
    """Returns the text of the pieces of the first reply."""
    # Strings have an `index` too, which is a method.
    return "".join(
        str(piece) for piece in pieces if not (isinstance(piece, TextPiece) and piece.index)
    )


def printable(text: str) -> str:
    """Returns the text with `?` for lone surrogates, which JSON can contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def read_json(piece: bytes) -> Any:
    """Reads a piece of any type."""
    try:
        return json.loads(piece)
    except (ValueError, RecursionError) as error:
        raise UnexpectedPiece("a piece of the reply is no JSON") from error


def text_input(prompt: Prompt, **options: Any) -> dict[str, Any]:
    """Returns the input of a model of text. Options that are None are left out."""
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        check(name, value)
    if isinstance(prompt, str):
        return {"prompt": prompt, **given}
    parts = list(prompt)
    if all(isinstance(part, int) for part in parts):
        return {"prompt_token_ids": parts, **given}
    return {"messages": parts, **given}


def embed_input(texts: str | Sequence[str], **fields: Any) -> dict[str, Any]:
    """Returns the input of an embedder; fields that are None are left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    listed = texts if isinstance(texts, str) else list(texts)
    return {"input": listed, "encoding_format": "base64", **given}


def judge_input(
    text: str,
    question: str | None = None,
    labels: Sequence[str] | Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """Returns the input of a judge. `labels` are names, or names with descriptions."""
    asked: dict[str, Any] = {"text": text}
    if question is not None:
        asked["question"] = question
    if labels:
        described = labels if isinstance(labels, Mapping) else dict.fromkeys(labels)
        asked["labels"] = [
            {"label": label} if about is None else {"label": label, "description": about}
            for label, about in described.items()
        ]
    return asked


def read_embeddings(pieces: Sequence[Any], usage: Usage) -> Embeddings:
    """Returns the vectors of a reply; those in base64 are decoded."""
    try:
        ordered = sorted(pieces, key=lambda piece: int(piece["index"]))
        return Embeddings([vector(piece["embedding"]) for piece in ordered], usage)
    except (KeyError, TypeError, ValueError, struct.error):
        raise UnexpectedPiece("a piece of the reply is no embedding") from None


def vector(value: Any) -> list[float]:
    """Returns the numbers of an embedding: a list, or f32 in base64, little-endian."""
    if isinstance(value, str):
        raw = base64.b64decode(value, validate=True)
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    return [float(number) for number in value]


def read_scores(pieces: Sequence[Any]) -> Scores:
    """Returns the scores of a judge's reply."""
    if len(pieces) != 1 or not isinstance(pieces[0], dict):
        raise UnexpectedPiece("the reply is no judgment")
    try:
        return Scores({str(label): float(score) for label, score in pieces[0].items()})
    except (TypeError, ValueError):
        raise UnexpectedPiece("the reply is no judgment") from None
