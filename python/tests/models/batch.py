"""Models that answer several inputs at once."""

from __future__ import annotations

from typing import Union

from nsbridge_handler import BadInput, BatchModel, Job, SeededBatchModel


class Lengths:
    def run(self, inputs: list[str]) -> list[Union[int, BadInput]]:
        return [len(text) if text else BadInput("the text is empty") for text in inputs]


class Draws:
    def run(self, inputs: list[str], jobs: list[Job]) -> list[list[Union[str, int]]]:
        return [[text, job.seed] for text, job in zip(inputs, jobs)]


checked: BatchModel = Lengths()
checked_with_seeds: SeededBatchModel = Draws()
