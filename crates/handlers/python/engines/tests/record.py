"""Records the answers of a real vLLM to the scenarios: `python record.py FOLDER_OF_SMOLLM2`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from nsbridge_handler import AsyncJob

from engine_text import Call, Delta, Prompt, answer
from job import Collector
from recording import FILE, key, prompt_key
from scenarios import SCENARIOS, places
from vllm_engine import Engine


class Recorder:
    """Engine that notes what a real one answers."""

    can_force = True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.facts, self.words = engine.facts, engine.words
        self.prompts: dict[str, list[int]] = {}
        self.calls: dict[str, list[Any]] = {}

    async def prompt(self, input: Mapping[str, Any], job: AsyncJob) -> Prompt:
        prompt = await self._engine.prompt(input, job)
        self.prompts[prompt_key(input)] = prompt.tokens
        return prompt

    async def generate(self, call: Call) -> AsyncGenerator[Delta, None]:
        deltas = self.calls[key(call)] = list[Any]()
        async for delta in self._engine.generate(call):
            deltas.append(asdict(delta))
            yield delta

    def tokens(self) -> set[int]:
        """Returns all tokens that occur."""
        seen = {token for prompt in self.prompts.values() for token in prompt}
        for delta in (delta for deltas in self.calls.values() for delta in deltas):
            seen.update(delta["tokens"])
            for score in [*delta["scores"], *(score for score in delta["prompt"] if score)]:
                seen.update(token for token, _ in score["top"])
        return seen


async def record(folder: Path) -> None:
    """Runs each scenario whole and after each of its places, one call at a time."""
    engine = Engine()
    await engine.load({"target": folder}, {"max_model_len": 2048, "max_num_seqs": 16, "enforce_eager": True})
    recorder = Recorder(engine)
    pieces: dict[str, list[Any]] = {}
    for scenario in SCENARIOS:
        job = Collector()
        await answer(recorder, scenario.input, job)
        pieces[scenario.name] = job.pieces
        for place in places(len(job.pieces)):
            later = Collector(before=job.pieces[:place], attempt=2)
            await answer(recorder, scenario.input, later)
    tokens = sorted(recorder.tokens())
    facts = {**asdict(recorder.facts), "ends": sorted(recorder.facts.ends), "adapters": []}
    special = [token for token in tokens if not engine.words.plain(token)]
    words = {token: list(engine.words.spelled(token)) for token in tokens}
    content = {
        "version": engine.version,
        "facts": facts,
        "special": special,
        "words": words,
        "prompts": recorder.prompts,
        "pieces": pieces,
        "calls": recorder.calls,
    }
    FILE.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
    engine.close()


if __name__ == "__main__":
    asyncio.run(record(Path(sys.argv[1])))
