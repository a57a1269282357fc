"""Pieces of a reply, and of the prompt before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Optional

from nsbridge_handler import BadInput, FinishReason, TextPiece, TokenLogprob

from engine_detokenize import Stops, TextStream
from engine_request import Request
from engine_words import Words


@dataclass(frozen=True)
class Score:
    """Log-probabilities at the place of a token."""

    logprob: float
    top: Sequence[tuple[int, float]]
    """Likeliest tokens with their log-probabilities, the likeliest first, equals by id."""
    rank: Optional[int] = None


class Reply:
    """One of the replies to a prompt."""

    def __init__(self, index: int, words: Words, request: Request, stops: Stops, limit: int) -> None:
        """Creates an empty reply of at most `limit` tokens."""
        self.index = index
        self.tokens: list[int] = []
        self.end: Optional[FinishReason] = None
        self._words, self._request, self._limit = words, request, limit
        self._text = TextStream(stops)

    def resume(self, token: int) -> None:
        """Takes over a token of an earlier attempt."""
        if not 0 <= token:
            raise BadInput("the resumed pieces are not of this model's making")
        self._take(token, None)

    def take(self, token: int, score: Optional[Score], reason: Optional[str]) -> TextPiece:
        """Appends a token, and returns its piece. `reason` is that of the engine, for the last token."""
        self._refuse_banned(token)
        piece: TextPiece = {"token": token, "text": self._take(token, reason)}
        if score is not None:
            _write(score, piece, self._words if self._request.token_texts else None)
        if self._request.n > 1:
            if self.index > 0:
                piece["index"] = self.index
            if self.end is not None:
                piece["finish_reason"] = self.end
        return piece

    def _take(self, token: int, reason: Optional[str]) -> str:
        self.tokens.append(token)
        ended = token in self._request.ends
        complete = ended or reason == "stop"
        full = len(self.tokens) >= self._limit or reason == "length"
        text, met = self._text.push(b"" if ended else self._spelled(token), complete or full)
        if met:
            self.end = "stop_text"
        elif complete:
            self.end = "stop"
        elif full:
            self.end = "length"
        return text

    def _spelled(self, token: int) -> bytes:
        words = self._words
        return words.spelled(token) if self._request.special_texts else words.plain(token)

    def _refuse_banned(self, token: int) -> None:
        """Refuses a token that an engine takes only where nothing else is left."""
        request, early = self._request, len(self.tokens) < self._request.min_tokens
        if token in request.bad_token_ids or (early and token in request.ends):
            raise nothing_left(request)


def nothing_left(request: Request) -> BadInput:
    """Creates the error of a step in which each token that the format allows is banned."""
    given = {
        "`bad_token_ids`": request.bad_token_ids,
        "`bad_token_sequences`": request.bad_token_sequences,
        "`min_tokens`": request.min_tokens,
    }
    fields = " and ".join(field for field, value in given.items() if value)
    return BadInput(f"{fields} leave no token to choose that `response_format` allows")


class PromptPieces:
    """Pieces of a prompt, one for each of its tokens."""

    def __init__(self, words: Words, request: Request, tokens: Sequence[int]) -> None:
        self.told = 0
        self._words, self._request, self._tokens = words, request, tokens
        self._text = TextStream(Stops(()))

    def remain(self) -> bool:
        """Returns true until all pieces are delivered."""
        return self.told < len(self._tokens)

    def unscored(self) -> bool:
        """Returns true while a piece needs a log-probability. The first token has none."""
        scored = self._request.prompt_logprobs is not None
        return scored and max(self.told, 1) < len(self._tokens)

    def resume(self, piece: TextPiece) -> None:
        """Takes over a piece of an earlier attempt."""
        own = self._next()
        if not piece.get("prompt") or (own["token"], own["text"]) != (piece["token"], piece["text"]):
            raise BadInput("the resumed pieces are not of this model's making")

    def take(self, scores: Sequence[Optional[Score]]) -> TextPiece:
        """Returns the next piece. `scores` has an entry for each token of the prompt, or is empty."""
        score = scores[self.told] if self.told < len(scores) else None
        piece = self._next()
        if self._request.token_texts:
            piece["token_text"] = self._words.text(piece["token"])
        if score is not None:
            _write(score, piece, self._words if self._request.token_texts else None)
            if score.rank is not None:
                piece["rank"] = score.rank
        return piece

    def _next(self) -> TextPiece:
        token = self._tokens[self.told]
        self.told += 1
        text = ""
        if self._request.echo:
            text = self._text.push(self._words.plain(token), not self.remain())[0]
        return {"token": token, "text": text, "prompt": True}


def _write(score: Score, piece: TextPiece, words: Optional[Words]) -> None:
    """Adds log-probabilities to a piece, with the tokens' texts by `words`. JSON has no infinite number."""
    if words is not None:
        piece["token_text"] = words.text(piece["token"])
    if isfinite(score.logprob):
        piece["logprob"] = score.logprob
    top = list[TokenLogprob]()
    for token, logprob in score.top:
        if isfinite(logprob):
            each: TokenLogprob = {"token": token, "logprob": logprob}
            if words is not None:
                each["text"] = words.text(token)
            top.append(each)
    if top:
        piece["top_logprobs"] = top
