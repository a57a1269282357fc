"""Module with a function `handle` that takes the input alone and returns the only piece."""

from __future__ import annotations

from nsbridge_handler import Models

names: list[str] = []


def load(models: Models) -> None:
    names.extend(models)


def handle(input: dict[str, int]) -> dict[str, int]:
    return {key: value + 1 for key, value in input.items()}
