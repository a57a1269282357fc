"""Model that vLLM serves: `[handler] engine = "vllm"`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Optional, cast

# First, because it says what is missing where vLLM is.
from vllm_start import Vllm, consequences  # isort: skip
from nsbridge_handler import AsyncJob, BadInput, Fatal, Models, Options, Retry
from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput

from engine_guard import Guard, encoder
from engine_images import image_parts
from engine_prompt import Prompter
from engine_reply import Score, nothing_left
from engine_request import Facts
from engine_text import Call, Delta, Prompt, answer
from engine_words import Words
from vllm_adapters import adapter_options, load_adapters
from vllm_forced import processor_name, reaches_all
from vllm_images import Images, most_images
from vllm_pooling import Embedder, Judge
from vllm_request import sampling_params

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.logprobs import Logprob
    from vllm.lora.request import LoRARequest

__all__ = ["Embedder", "Engine", "Judge"]


class Engine(Vllm):
    """Model of text."""

    can_force = False
    facts: Facts
    words: Words
    _adapters: Mapping[str, LoRARequest] = MappingProxyType({})

    async def load(self, models: Models, options: Options, adapters: Sequence[str] = ()) -> None:
        """Starts vLLM with a model's folder, vLLM's own engine arguments and the names of the adapters."""
        config = self.configure(models, adapter_options(models, adapters, options))
        model = config.model_config
        self.can_force = config.speculative_config is None and reaches_all(config.parallel_config)
        if self.can_force:
            own = processor_name(config.use_v2_model_runner)
            model.logits_processors = [*(model.logits_processors or ()), own]
        self.start(config)
        self._adapters = await load_adapters(self.llm, models, adapters)
        self.version = " ".join([self.version, *adapters])
        self.describe(config)

    def describe(self, config: VllmConfig) -> None:
        """Notes what answers need of the model, and how its prompts are made."""
        model, generation = config.model_config, config.model_config.try_get_generation_config()
        tokenizer: Any = self.llm.get_tokenizer()
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise Fatal(
                "the model's tokenizer has no tokenizer.json, which this worker needs: convert it with "
                'transformers, or set `tokenizer_mode = "hf"` in [handler.options]'
            )
        more: Any = generation.get("eos_token_id") or []
        ends: list[Optional[int]] = [more] if isinstance(more, int) else [*more]
        ends.append(self.llm.renderer.get_eos_token_id())
        known = frozenset(token for token in ends if token is not None)
        defaults = model.get_diff_sampling_param()
        policy = config.scheduler_config.policy
        self.facts = Facts(
            model.get_vocab_size(),
            model.max_model_len,
            known,
            defaults,
            tuple(self._adapters),
            "" if policy == "priority" else 'scheduling_policy = "priority"',
        )
        self._most_images = most_images(self.llm.renderer)
        # Also without an image the template of such a model may take texts in parts.
        self._images = Images(self.llm.renderer, model) if model.is_multimodal_model else None
        document = json.loads(backend.to_str())
        self.words = Words.from_document(document)
        self._prompter = Prompter(tokenizer, Guard(document), encoder(document), model.max_model_len)

    async def handle(self, input: dict[str, Any], job: AsyncJob) -> None:
        """Answers a TextInput with TextPieces."""
        await answer(self, input, job)

    def modalities(self) -> list[str]:
        """Returns what a message may have."""
        return ["text", "image"] if self._most_images else ["text"]

    async def prompt(self, input: Mapping[str, Any], job: AsyncJob) -> Prompt:
        """Returns a prompt. Long ones and images take a while, so a thread makes them."""
        parts, tokens = image_parts(input, self._most_images), self._prompter.tokens
        if self._images is None:
            return Prompt(await asyncio.to_thread(tokens, input, job.submitted_at))
        chat = await asyncio.to_thread(self._images.chat, parts, job.scope)
        made = await asyncio.to_thread(tokens, input, job.submitted_at, chat.place)
        if not parts:
            return Prompt(made)
        media = await self._images.input(made, chat)
        return Prompt(media["prompt_token_ids"], media)

    async def generate(self, call: Call) -> AsyncGenerator[Delta, None]:
        """Streams a reply from vLLM. A generator that is closed or canceled aborts the request there."""
        prompt: Any = tokens_input(list(call.prompt), cache_salt=call.scope or None)
        if call.media is not None:
            # With all that the tokens of the prompt do not tell. Those of a continued reply come after it.
            prompt = {**cast("dict[str, Any]", call.media), **prompt, "type": "multimodal"}
        priority = call.request.priority
        with consequences():
            adapter = self._adapters.get(call.request.adapter or "")
            outputs = self.llm.generate(
                prompt, sampling_params(call), call.id, lora_request=adapter, priority=priority
            )
            try:
                async for output in outputs:
                    yield _delta(output, call)
            finally:
                await outputs.aclose()


def _delta(output: RequestOutput, call: Call) -> Delta:
    """Converts an output. Raises an error for an end that is no end of a reply."""
    made = output.outputs[0]
    reason = made.finish_reason
    if reason not in (None, "stop", "length"):
        request = call.request
        bans = request.bad_token_ids or request.bad_token_sequences or request.min_tokens
        if request.format is not None and reason == "error":
            raise nothing_left(request) if bans else BadInput("vLLM cannot follow `response_format`")
        raise Retry("vLLM ended the reply early")
    top = call.request.logprobs or 0
    tokens = list(made.token_ids)
    scores = [_score(token, row, top) for token, row in zip(tokens, made.logprobs or ()) if row]
    prompt = list[Optional[Score]]()
    if call.prompt_logprobs is not None and output.prompt_logprobs:
        for token, row in zip(call.prompt, output.prompt_logprobs):
            prompt.append(_score(token, row, call.prompt_logprobs) if row else None)
    return Delta(tokens, scores, prompt, reason, output.num_cached_tokens)


def _score(token: int, row: Mapping[int, Logprob], top: int) -> Score:
    """Returns the numbers of one place, where vLLM has the chosen token and the likeliest ones."""
    likeliest = sorted((-each.logprob, other) for other, each in row.items())[:top]
    return Score(row[token].logprob, [(other, -logprob) for logprob, other in likeliest], row[token].rank)
