"""Answers of an engine whose every delta was recorded from a real vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from nsbridge_handler import BadInput, Retry

from engine_text import Call, Delta, answer
from job import Collector
from recording import Recorded
from scenarios import SCENARIOS, Scenario, places

each = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def run(engine: Recorded, input: dict[str, Any], **fields: Any) -> Collector:
    job = Collector(**fields)
    asyncio.run(answer(engine, input, job))
    return job


def of_reply(pieces: list[Any]) -> list[Any]:
    return [piece for piece in pieces if not piece.get("prompt")]


@each
def test_pieces_are_those_that_were_recorded_and_every_call_is_closed(scenario: Scenario) -> None:
    engine = Recorded()
    job = run(engine, scenario.input)
    assert job.pieces == engine.pieces[scenario.name]
    assert job.usage.get("output_tokens") == len(of_reply(job.pieces))
    assert engine.closed == len(engine.calls)


@each
def test_a_later_attempt_emits_only_what_comes_after_the_pieces_of_the_first(scenario: Scenario) -> None:
    whole = run(Recorded(), scenario.input)
    for place in places(len(whole.pieces)):
        engine = Recorded()
        job = run(engine, scenario.input, before=whole.pieces[:place], attempt=2)
        assert job.all[:place] == whole.pieces[:place]
        assert job.usage.get("input_tokens") == whole.usage.get("input_tokens")
        assert job.usage.get("output_tokens") == len(of_reply(job.all))
        if scenario.replays:
            assert (job.all, job.reason) == (whole.pieces, whole.reason)
            assert all(call.prompt == engine.calls[0].prompt for call in engine.calls)
        if place == len(whole.pieces):
            assert (job.pieces, job.reason) == ([], whole.reason)
            assert not engine.calls


@each
def test_an_engine_that_cannot_be_forced_begins_a_reply_with_a_history_anew(scenario: Scenario) -> None:
    whole = run(Recorded(), scenario.input)
    engine = Recorded(can_force=False)
    job = run(engine, scenario.input, before=whole.pieces[:1], attempt=2)
    assert job.asked is not scenario.replays
    if scenario.replays:
        assert job.pieces == whole.pieces
        assert all(call.forced == [] for call in engine.calls)


def test_a_continued_prompt_has_the_tokens_of_the_pieces_and_fewer_are_left() -> None:
    input = BY_NAME["sampled"].input
    whole = run(Recorded(), input)
    engine = Recorded()
    run(engine, input, before=whole.pieces[:6], attempt=2)
    [call] = engine.calls
    assert call.prompt == [504, 3426, 314, *(piece["token"] for piece in whole.pieces[:6])]
    assert (call.max_tokens, call.forced) == (6, [])
    # The seed of the beginning would draw the same noise again.
    assert call.seed != 7


def test_pieces_of_several_replies_take_turns_and_the_last_one_of_each_tells_its_end() -> None:
    job = run(Recorded(), BY_NAME["several"].input)
    told = [0, 0, 0]
    ended: set[int] = set()
    for piece in job.pieces:
        index = piece.get("index", 0)
        going = [told[other] for other in range(3) if other not in ended]
        assert index not in ended and told[index] == min(going)
        told[index] += 1
        if "finish_reason" in piece:
            ended.add(index)
    assert ended == {0, 1, 2}
    assert "stop_text" in {piece.get("finish_reason") for piece in job.pieces}


def test_a_schema_is_never_doubled_by_a_later_attempt() -> None:
    input = BY_NAME["schema"].input
    whole = run(Recorded(), input)
    assert set(json.loads(whole.text)) == {"sky", "boats"}
    for place in places(len(whole.pieces)):
        assert run(Recorded(), input, before=whole.pieces[:place], attempt=2).text == whole.text


class Faulty(Recorded):
    """Engine that answers with its own deltas."""

    def __init__(self, *deltas: Delta) -> None:
        super().__init__()
        self.deltas = deltas

    async def generate(self, call: Call) -> AsyncGenerator[Delta, None]:
        for delta in self.deltas:
            yield delta


def test_an_engine_that_ends_without_a_reason_or_forgets_forced_tokens_is_tried_again() -> None:
    with pytest.raises(Retry):
        run(Faulty(Delta([253])), BY_NAME["greedy"].input)
    input = BY_NAME["schema"].input
    first = run(Recorded(), input).pieces[:2]
    with pytest.raises(Retry):
        run(Faulty(Delta([1, 1])), input, before=first, attempt=2)


def test_a_banned_token_that_is_the_last_one_left_is_told_by_the_field() -> None:
    input = {**BY_NAME["schema"].input, "min_tokens": 9}
    with pytest.raises(BadInput, match="`min_tokens` leave no token to choose"):
        run(Faulty(Delta([504, 2])), input)


def test_a_stopped_call_closes_its_streams() -> None:
    async def stop() -> int:
        engine, job = Recorded(), Collector()
        gate = asyncio.Event()

        async def emit(piece: object) -> None:
            job.began.set()
            await gate.wait()

        job.emit = emit  # type: ignore[method-assign]
        task = asyncio.ensure_future(answer(engine, BY_NAME["several"].input, job))
        await job.began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return engine.closed

    assert asyncio.run(stop()) == 3
