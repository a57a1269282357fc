"""Recorded answers of a real engine, and an engine that gives them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nsbridge_handler import AsyncJob

from engine_reply import Score
from engine_request import Facts
from engine_text import Call, Delta, Prompt
from engine_words import Words

FILE = Path(__file__).with_name("recorded.json")


def key(call: Call) -> str:
    """Returns what an answer depends on."""
    fields = asdict(call)
    for name in ("id", "scope"):
        del fields[name]
    fields["request"]["ends"] = sorted(call.request.ends)
    # No recorded request has an adapter or an image.
    assert (fields.pop("media"), fields["request"].pop("adapter")) == (None, None)
    return json.dumps(fields, sort_keys=True)


def prompt_key(input: Mapping[str, Any]) -> str:
    """Returns what a prompt depends on."""
    return json.dumps({name: input[name] for name in ("prompt", "messages") if name in input}, sort_keys=True)


def _score(row: Any) -> Any:
    return row and Score(row["logprob"], [(token, logprob) for token, logprob in row["top"]], row["rank"])


def read_delta(row: Mapping[str, Any]) -> Delta:
    """Returns a recorded delta."""
    scores = [_score(score) for score in row["scores"]]
    prompt = [_score(score) for score in row["prompt"]]
    return Delta(row["tokens"], scores, prompt, row["reason"], row["cached"])


class Recorded:
    """Engine whose every answer was recorded. It fails at a call that a real engine was not asked for."""

    def __init__(self, can_force: bool = True) -> None:
        record = json.loads(FILE.read_text())
        facts = record["facts"]
        self.facts = Facts(facts["vocabulary"], facts["context"], frozenset(facts["ends"]), facts["defaults"])
        spelled = {int(token): bytes(data) for token, data in record["words"].items()}
        self.words = Words(spelled, frozenset(record["special"]))
        self.can_force = can_force
        self.calls: list[Call] = []
        self.closed = 0
        self._prompts: dict[str, list[int]] = record["prompts"]
        self._deltas: dict[str, list[Any]] = record["calls"]
        self.pieces: dict[str, list[Any]] = record["pieces"]

    async def prompt(self, input: Mapping[str, Any], job: AsyncJob) -> Prompt:
        return Prompt(self._prompts[prompt_key(input)])

    async def generate(self, call: Call) -> AsyncGenerator[Delta, None]:
        self.calls.append(call)
        try:
            for row in self._deltas[key(call)]:
                yield read_delta(row)
        finally:
            self.closed += 1
