"""SGLang itself, on the model whose folder `NSBRIDGE_TEST_SGLANG_MODEL` names. Run this file alone.

The model is SmolLM2-135M-Instruct. SGLang runs on the CPU in single precision, and transformers judges it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

MODEL = os.environ.get("NSBRIDGE_TEST_SGLANG_MODEL", "")
if not MODEL:
    pytest.skip("NSBRIDGE_TEST_SGLANG_MODEL names no model", allow_module_level=True)

import torch
from nsbridge_handler import BadInput, Fatal
from transformers import AutoModelForCausalLM

from job import Collector
from scenarios import SCENARIOS, SCHEMA, places
from sglang_engine import Engine

T = TypeVar("T")
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "dtype": "float32",
    "context_length": 2048,
    "max_total_tokens": 8192,
    "max_running_requests": 16,
    "chunked_prefill_size": 64,
}
LOOP = asyncio.new_event_loop()
SEA: dict[str, Any] = {"prompt": "The sea is", "max_tokens": 12, "temperature": 0}
FORM = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
# Many tokens, which SGLang reads in several parts.
LONG = {"prompt": "The sea is wide. " * 40 + "The weather as JSON: ", "temperature": 0, "response_format": FORM}
GREEDY = [each for each in SCENARIOS if each.input.get("temperature") == 0 and each.name != "sequences"]


def wait(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, LOOP).result(300)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine()
    # As the runner does: the load in the main thread, and the calls in another one.
    LOOP.run_until_complete(engine.load({"target": Path(MODEL)}, OPTIONS))
    threading.Thread(target=LOOP.run_forever, daemon=True).start()
    yield engine
    engine.close()


def run(engine: Engine, input: dict[str, Any], **fields: Any) -> Collector:
    job = Collector(**fields)
    wait(engine.handle(input, cast(Any, job)))
    return job


def tokens(pieces: list[Any]) -> list[int]:
    return [piece["token"] for piece in pieces]


def check(piece: dict[str, Any], row: Any) -> None:
    """Compares the log-probabilities of a piece with those of transformers."""
    for each in ([piece] if "logprob" in piece else []) + piece.get("top_logprobs", []):
        assert each["logprob"] == pytest.approx(float(row[each["token"]]), abs=1e-3)
    likeliest = row.topk(max(len(piece.get("top_logprobs", ())), 1)).indices.tolist()
    assert [top["token"] for top in piece.get("top_logprobs", ())] in ([], likeliest)


@pytest.mark.parametrize("name", ["greedy", "chat", "emoji", "logprobs", "echo", "scored", "only_scored"])
def test_a_greedy_reply_is_that_of_transformers(engine: Engine, name: str) -> None:
    [input] = [each.input for each in GREEDY if each.name == name]
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    pieces = run(engine, input).pieces
    ids = wait(engine.prompt(input, cast(Any, Collector()))).tokens
    made = [piece for piece in pieces if not piece.get("prompt")]
    with torch.no_grad():
        [rows] = model(torch.tensor([[*ids, *tokens(made)]])).logits.log_softmax(-1)
    assert tokens(made) == rows[len(ids) - 1 :][: len(made)].argmax(-1).tolist()
    for piece, row in zip(made, rows[len(ids) - 1 :]):
        check(piece, row)
    of_prompt = pieces[: len(pieces) - len(made)]
    assert tokens(of_prompt) in ([], ids)
    for piece, row in zip(of_prompt[1:], rows):
        check(piece, row)


@pytest.mark.parametrize(
    "input",
    [*(each.input for each in GREEDY), {**SEA, "repetition_penalty": 1.6, "max_tokens": 30}, LONG],
    ids=[*(each.name for each in GREEDY), "repetition", "long"],
)
def test_a_greedy_reply_continues_wherever_it_ended(engine: Engine, input: dict[str, Any]) -> None:
    whole = run(engine, input)
    for place in places(len(whole.pieces)):
        job = run(engine, input, before=whole.pieces[:place], attempt=2)
        assert (tokens(job.all), job.reason) == (tokens(whole.pieces), whole.reason)
        assert len(job.pieces) == len(whole.pieces) - place


def test_a_drawn_schema_is_never_doubled(engine: Engine) -> None:
    input = {**LONG, "temperature": 1.0}
    whole = run(engine, input)
    for place in places(len(whole.pieces)):
        job = run(engine, input, before=whole.pieces[:place], attempt=2)
        assert job.all[:place] == whole.pieces[:place]
        assert set(json.loads(job.text)) == {"sky", "boats"}


def test_many_replies_at_once_are_those_of_each_alone(engine: Engine) -> None:
    inputs = [{**SEA, "prompt": f"{number}, {number + 1}, {number + 2},"} for number in range(8)]
    inputs += [{**LONG, "max_tokens": 20}] * 2
    alone = [run(engine, input) for input in inputs]

    async def together() -> list[Collector]:
        jobs = [
            Collector(id=f"job{number}", before=job.pieces[:3], attempt=2) for number, job in enumerate(alone)
        ]
        await asyncio.gather(*(engine.handle(each, cast(Any, job)) for each, job in zip(inputs, jobs)))
        return jobs

    assert [tokens(job.all) for job in wait(together())] == [tokens(job.pieces) for job in alone]


def test_a_drawn_token_has_the_log_probability_of_the_model(engine: Engine) -> None:
    scored = {**SEA, "max_tokens": 1, "logprobs": True, "top_logprobs": 20}
    [greedy] = run(engine, scored).pieces
    known = {top["token"]: top["logprob"] for top in greedy["top_logprobs"]}
    [drawn] = run(engine, {**scored, "temperature": 3.0, "top_k": 20}).pieces
    assert drawn["logprob"] == pytest.approx(known[drawn["token"]], abs=1e-3)


def test_a_banned_token_that_is_the_last_one_left_is_told(engine: Engine) -> None:
    form = {"type": "regex", "regex": "(a|b)"}
    ids = [each[0] for each in map(engine.engine.tokenizer_manager.tokenizer.encode, "ab")]
    with pytest.raises(BadInput, match="`bad_token_ids` leave no token"):
        run(engine, {**SEA, "response_format": form, "bad_token_ids": ids})
    with pytest.raises(BadInput, match="`min_tokens` leave no token"):
        run(engine, {**SEA, "response_format": form, "min_tokens": 6})
    assert run(engine, {**SEA, "response_format": form, "bad_token_ids": ids[:1]}).text == "b"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"repetition_penalty": 3.0}, "repetition_penalty"),
        ({"response_format": {"type": "regex", "regex": "(a"}}, "."),
        ({"prompt": "a " * 2100}, "context"),
    ],
    ids=str,
)
def test_what_sglang_refuses_is_told(engine: Engine, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        run(engine, {**SEA, **fields})


def test_the_longest_prompt_and_reply_fill_the_context(engine: Engine) -> None:
    ids = [28] * (engine.facts.context - 4)
    job = run(engine, {"prompt_token_ids": ids, "temperature": 0, "ignore_eos": True})
    assert (len(job.pieces), job.reason) == (4, "length")
    job = run(engine, {"prompt_token_ids": ids, "ignore_eos": True}, before=job.pieces[:3], attempt=2)
    assert len(job.pieces) == 1


def test_a_canceled_request_leaves_sglang(engine: Engine) -> None:
    async def cancel() -> None:
        job = Collector()
        task = asyncio.ensure_future(engine.handle({**SEA, "max_tokens": 1500, "n": 3}, cast(Any, job)))
        await job.began.wait()
        running: dict[str, Any] = cast(Any, engine.engine.tokenizer_manager).rid_to_state
        assert len(running) == 3
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while running:
            await asyncio.sleep(0.1)

    wait(asyncio.wait_for(cancel(), 200))
    assert engine.measures()["engine_generation_tokens"] > 100


def test_a_killed_scheduler_is_told_and_this_process_lives(engine: Engine) -> None:
    async def end() -> None:
        job = Collector()
        task = asyncio.ensure_future(engine.handle({**SEA, "max_tokens": 1500}, cast(Any, job)))
        await job.began.wait()
        assert engine.health() is None
        os.kill(engine.engine.get_all_child_pids()[0], signal.SIGKILL)
        while engine.health() is None:
            await asyncio.sleep(0.1)
        with pytest.raises(Fatal, match="has ended"):
            await task

    wait(asyncio.wait_for(end(), 200))
