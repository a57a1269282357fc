"""Models that make vectors or scores of texts: `task = "embed"` and `task = "judge"`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

# First, because it says what is missing where vLLM is.
from vllm_start import Vllm, consequences  # isort: skip
from nsbridge_handler import AsyncJob, Fatal, Models, Options
from vllm import PoolingParams
from vllm.inputs.engine import tokens_input

from engine_pooling import embed, judge

if TYPE_CHECKING:
    from vllm.config import ModelConfig


class _Pooling(Vllm):
    """Model that reads a text whole and makes numbers of it."""

    convert: Literal["embed", "classify"]
    context: int

    async def load(self, models: Models, options: Options, adapters: Sequence[str] = ()) -> None:
        """Starts vLLM with a model's folder and vLLM's own engine arguments."""
        if adapters:
            raise Fatal("`adapters` in [handler] are for the task text")
        config = self.configure(models, {"runner": "pooling", "convert": self.convert, **options})
        self.start(config)
        self.context = config.model_config.max_model_len
        self._tokenizer: Any = self.llm.get_tokenizer()
        self.describe(config.model_config)

    def describe(self, model: ModelConfig) -> None:
        """Notes what answers need of the model."""
        raise NotImplementedError

    async def tokens(self, text: str) -> list[int]:
        """Returns the tokens of a text. Long ones take a while, so a thread makes them."""
        tokens: list[int] = await asyncio.to_thread(self._tokenizer.encode, text)
        return tokens

    async def numbers(self, id: str, tokens: Sequence[int], scope: str) -> list[float]:
        """Returns what the model makes of a text. A call that is canceled is dropped in vLLM."""
        prompt = tokens_input(list(tokens), cache_salt=scope or None)
        with consequences():
            async for output in self.llm.encode(prompt, PoolingParams(task=self.convert), id):
                if output.finished:
                    made: Any = output.outputs.data
                    return [float(value) for value in made.flatten().tolist()]
        raise RuntimeError("vLLM ended a request without a result")


class Embedder(_Pooling):
    """Model of vectors."""

    convert = "embed"

    def describe(self, model: ModelConfig) -> None:
        """Notes the size of the vectors."""
        self._size = int(model.embedding_size)

    async def handle(self, input: dict[str, Any], job: AsyncJob) -> None:
        """Answers an EmbeddingInput with a piece for each text, in their order."""
        await embed(self, self._size, input, job)


class Judge(_Pooling):
    """Classifier with categories of its own."""

    convert = "classify"

    def describe(self, model: ModelConfig) -> None:
        """Notes the names of the categories."""
        labels: Any = model.hf_config.id2label
        self._categories = [labels[place] for place in sorted(labels)]

    async def handle(self, input: dict[str, Any], job: AsyncJob) -> None:
        """Answers a JudgeInput with the scores of the model's categories."""
        await judge(self, self._categories, input, job)
