"""Function that emits, in a subclass of the protocol."""

from __future__ import annotations

from nsbridge_handler import Job, Model


class Spelling(Model):
    def handle(self, input: str, job: Job) -> None:
        for letter in input[len(job.resumed()) :]:
            job.emit(letter)
        job.finish("stop", cached_tokens=2)
