"""Model that SGLang serves: `[handler] engine = "sglang"`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar
from uuid import uuid4

from nsbridge_handler import AsyncJob, BadInput, Fatal, Models, Options

from engine_guard import Guard, encoder
from engine_images import image_parts
from engine_prompt import Prompter
from engine_request import Facts
from engine_text import Call, Delta, Prompt, answer
from engine_words import Words
from sglang_api import Output, TokenizerManager
from sglang_reply import delta, why
from sglang_request import sampling_params
from sglang_start import Sglang

_NO_PROMPT_LOGPROBS = -1


class _Facts(Facts):
    # SGLang's `repetition_penalty` counts the tokens of the reply alone.
    penalizes_prompt: ClassVar[bool] = False


class Engine(Sglang):
    """Model of text."""

    can_force = False
    facts: Facts
    words: Words

    async def load(self, models: Models, options: Options, adapters: Sequence[str] = ()) -> None:
        """Starts SGLang with a model's folder, SGLang's own arguments and the names of the adapters."""
        resolved = self.start(models, options, adapters)
        self.can_force = not resolved.get("speculative_algorithm") and not resolved.get("enable_watermark")
        # Lower is earlier in a request.
        lower_first = resolved.get("schedule_low_priority_values_first")
        self._sign = (1 if lower_first else -1) if resolved.get("enable_priority_scheduling") else None
        if self.can_force:
            self._forced: str = import_module("sglang_forced").Forced.to_str()
        self._describe(self.engine.tokenizer_manager, adapters)

    def _describe(self, manager: TokenizerManager, adapters: Sequence[str]) -> None:
        model, tokenizer = manager.model_config, manager.tokenizer
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise Fatal(
                "the model's tokenizer has no tokenizer.json, which this worker needs: convert it with "
                "transformers"
            )
        more: set[int] = getattr(tokenizer, "additional_stop_token_ids", None) or set()
        ends = {*(model.hf_eos_token_id or ()), *more, tokenizer.eos_token_id} - {None}
        # SGLang takes shorter prompts than others, and a continued reply is a prompt.
        context = min(manager.max_req_input_len, model.context_len - manager.num_reserved_tokens)
        defaults = model.get_default_sampling_params()
        self.facts = _Facts(
            model.vocab_size,
            context,
            frozenset(ends),
            defaults,
            frozenset(adapters),
            "enable_priority_scheduling = true" if self._sign is None else "",
        )
        document = json.loads(backend.to_str())
        self.words = Words.from_document(document)
        self._prompter = Prompter(tokenizer, Guard(document), encoder(document), context)

    async def handle(self, input: dict[str, Any], job: AsyncJob) -> None:
        """Answers a TextInput with TextPieces."""
        await answer(self, input, job)

    async def prompt(self, input: Mapping[str, Any], job: AsyncJob) -> Prompt:
        """Returns a prompt. Long ones take a while, so a thread makes them."""
        # SGLang makes a text of the tokens beside an image, in which texts become special tokens.
        image_parts(input, 0)
        return Prompt(await asyncio.to_thread(self._prompter.tokens, input, job.submitted_at))

    async def generate(self, call: Call) -> AsyncGenerator[Delta, None]:
        """Streams a reply from SGLang. A generator that is closed or canceled aborts the request there."""
        # An abort drops all requests whose names begin with its own, so all names have the same length.
        name, is_first = uuid4().hex, True
        outputs = self.running.read(await self._asked(call, name))
        try:
            async for output in outputs:
                made = delta(output, call, is_first)
                self.measured.add(output["meta_info"], len(made.tokens), is_first)
                is_first = False
                yield made
        except ValueError as error:
            # SGLang raises it for what it refuses, before the first output.
            if not is_first:
                raise
            raise BadInput(why(error)) from None
        finally:
            await outputs.aclose()
            self.engine.tokenizer_manager.abort_request(name)

    async def _asked(self, call: Call, name: str) -> AsyncGenerator[Output, None]:
        request, scored = call.request, call.prompt_logprobs is not None
        return await self.engine.async_generate(
            input_ids=list(call.prompt),
            sampling_params=sampling_params(call),
            return_logprob=scored or request.logprobs is not None,
            logprob_start_len=0 if scored else _NO_PROMPT_LOGPROBS,
            top_logprobs_num=max(call.prompt_logprobs or 0, request.logprobs or 0),
            lora_path=request.adapter,
            custom_logit_processor=self._forced if call.forced else None,
            priority=None if self._sign is None else self._sign * request.priority,
            cache_salt=call.scope or None,
            rid=name,
            stream=True,
        )


class _TextAlone:
    """Model of a task that is not possible."""

    async def load(self, models: Models, options: Options, adapters: Sequence[str] = ()) -> None:
        """Refuses the task."""
        raise Fatal("the engine sglang answers with text alone: remove `task` in [handler]")


Embedder = Judge = _TextAlone
