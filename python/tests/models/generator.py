"""Text model: a generator in a class, with options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsbridge_handler import BadInput, Job, Model, Models, Options, TextPiece, Usage


@dataclass
class Prompt:
    prompt: str
    max_tokens: int = 3


class Words:
    def load(self, models: Models, options: Options) -> None:
        self.suffix = str(options.get("suffix", "!"))
        self.files = sorted(models)

    def handle(self, input: Prompt, job: Job) -> Iterator[TextPiece]:
        if not input.prompt:
            raise BadInput("the prompt is empty")
        job.at_most(input.max_tokens)
        before = len(job.resumed())
        for token in range(before, input.max_tokens):
            job.check()
            yield {"token": token, "text": f"{input.prompt}{job.seed + token}{self.suffix}"}
        usage: Usage = {"input_tokens": 1, "output_tokens": input.max_tokens}
        job.finish("length", **usage)


checked: Model = Words()
