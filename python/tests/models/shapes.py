"""A module as a model, and mistakes that a type checker must tell.

mypy checks this file in its strict mode, in which a comment without an error to ignore is an error too.
"""

from __future__ import annotations

from collections.abc import Iterator

import plain

from nsbridge_handler import AsyncJob, AsyncModel, InputModel, Job, Model, TextPiece

module: InputModel = plain
module_with_job: Model = plain  # type: ignore[assignment]

without_text: TextPiece = {"token": 7}  # type: ignore[typeddict-item]


class Sync:
    def handle(self, input: str, job: Job) -> Iterator[str]:
        job.finish("end")  # type: ignore[arg-type]
        job.at_most("3")  # type: ignore[arg-type]
        yield job.sed  # type: ignore[attr-defined]


class NotAwaited:
    async def handle(self, input: str, job: AsyncJob) -> None:
        job.emit(input)  # type: ignore[unused-coroutine]


class OtherJob:
    def handle(self, input: str, job: AsyncJob) -> None: ...


class Nothing: ...


one: AsyncModel = Sync()  # type: ignore[assignment]
two: Model = OtherJob()  # type: ignore[assignment]
three: Model = Nothing()  # type: ignore[assignment]
four: AsyncModel = NotAwaited()
