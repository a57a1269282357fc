"""Models that make vectors or scores of texts: `task = "embed"` and `task = "judge"`."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Union

# First, because it says what is missing where vLLM is.
from vllm_start import Vllm, consequences  # isort: skip
from nsbridge_handler import AsyncJob, BadInput, Models, Options
from vllm import PoolingParams
from vllm.inputs.engine import tokens_input

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# Largest vector of a piece, in bytes of JSON, and the bytes of a number there.
_PIECE_BYTES = 64 << 10
_NUMBER_BYTES = 24


class _Pooling(Vllm):
    """Model that reads a text whole and makes numbers of it."""

    convert: Literal["embed", "classify"]

    async def load(self, models: Models, options: Options) -> None:
        """Starts vLLM with a model's folder and vLLM's own engine arguments."""
        config = self.configure(models, {"runner": "pooling", "convert": self.convert, **options})
        self.start(config)
        self._context = config.model_config.max_model_len
        self._tokenizer: Any = self.llm.get_tokenizer()
        self._describe(config)

    def _describe(self, config: VllmConfig) -> None:
        pass

    async def _tokens(self, field: str, text: Union[str, Sequence[int]]) -> list[int]:
        """Returns the tokens of a text, to which those of token ids add nothing."""
        if isinstance(text, str):
            tokens: list[int] = await asyncio.to_thread(self._tokenizer.encode, text)
        else:
            tokens = list(text)
        if not 1 <= len(tokens) <= self._context:
            raise BadInput(f"`{field}` has {len(tokens)} tokens, and 1 to {self._context} are possible")
        return tokens

    async def _numbers(self, id: str, tokens: Sequence[int], scope: str) -> list[float]:
        """Returns what the model makes of a text. A call that is canceled is dropped in vLLM."""
        prompt = tokens_input(list(tokens), cache_salt=scope or None)
        with consequences():
            async for output in self.llm.encode(prompt, PoolingParams(task=self.convert), id):
                if output.finished:
                    return [float(value) for value in output.outputs.data.flatten().tolist()]
        raise RuntimeError("vLLM ended a request without a result")


class Embedder(_Pooling):
    """Model of vectors."""

    convert = "embed"

    async def handle(self, input: dict[str, Any], job: AsyncJob) -> None:
        """Answers an EmbeddingInput with a piece for each text, in their order."""
        texts: list[Union[str, list[int]]] = input["input"]
        if not texts:
            raise BadInput("`input` has no text")
        job.at_most(len(texts))
        done = len(await job.resumed())
        tokens = [await self._tokens(f"input[{place}]", text) for place, text in enumerate(texts)]
        calls = [
            asyncio.ensure_future(self._numbers(f"{job.id}-{job.attempt}-{place}", tokens[place], job.scope))
            for place in range(done, len(texts))
        ]
        try:
            for place, call in zip(range(done, len(texts)), calls):
                vector = _cut(await call, input.get("dimensions"))
                await job.emit({"index": place, "embedding": _encoded(vector, input.get("encoding_format"))})
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        job.finish("stop", input_tokens=sum(map(len, tokens)))


def _cut(vector: list[float], dimensions: Any) -> list[float]:
    """Returns the first dimensions of a vector, scaled to the length that it had."""
    if dimensions is None or dimensions == len(vector):
        return vector
    if not 1 <= dimensions <= len(vector):
        raise BadInput(f"`dimensions` must be from 1 to {len(vector)}")
    first = vector[:dimensions]
    size = math.hypot(*first)
    return [value * math.hypot(*vector) / size for value in first] if size else first


def _encoded(vector: Sequence[float], encoding: Any) -> Union[str, list[float]]:
    if encoding == "base64":
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    if len(vector) * _NUMBER_BYTES > _PIECE_BYTES:
        most = _PIECE_BYTES // _NUMBER_BYTES
        raise BadInput(f"`encoding_format` must be base64 for more than {most} dimensions")
    return list(vector)


class Judge(_Pooling):
    """Classifier with categories of its own."""

    convert = "classify"

    def _describe(self, config: VllmConfig) -> None:
        labels: dict[int, str] = config.model_config.hf_config.id2label
        self._labels = [labels[place] for place in sorted(labels)]

    async def handle(self, input: dict[str, Any], job: AsyncJob) -> None:
        """Answers a JudgeInput with the scores of the model's categories."""
        if input.get("question") is not None:
            raise BadInput("`question` is not possible: the model has categories of its own")
        wanted = [label["label"] for label in input.get("labels") or ()] or self._labels
        for label in wanted:
            if label not in self._labels:
                raise BadInput(f"`labels` must be among the model's categories: {', '.join(self._labels)}")
        tokens = await self._tokens("text", input["text"])
        numbers = await self._numbers(f"{job.id}-{job.attempt}", tokens, job.scope)
        scores = dict(zip(self._labels, numbers))
        await job.emit({label: scores[label] for label in wanted})
        job.finish("stop", input_tokens=len(tokens))
