"""Stops and the end of a real vLLM, on the model that `NSBRIDGE_TEST_VLLM_MODEL` names."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", exc_type=ImportError)
MODEL = os.environ.get("NSBRIDGE_TEST_VLLM_MODEL", "")
if not MODEL:
    pytest.skip("NSBRIDGE_TEST_VLLM_MODEL names no model", allow_module_level=True)

from nsbridge_handler import Fatal

from job import Collector
from vllm_engine import Engine

OPTIONS = {"max_model_len": 2048, "max_num_seqs": 2, "enforce_eager": True}
LONG: dict[str, Any] = {"prompt": "The sea is", "max_tokens": 1500, "ignore_eos": True}


async def check_stops(engine: Engine) -> None:
    """Checks that stopped calls leave the engine within a step, and that the next one runs at once."""
    jobs = [Collector() for _ in range(3)]
    tasks = [asyncio.ensure_future(engine.handle(LONG, job)) for job in jobs]
    await asyncio.gather(jobs[0].began.wait(), jobs[1].began.wait())
    while engine.measures()["engine_requests_running"] < 2:
        await asyncio.sleep(0.01)
    assert engine.measures()["engine_requests_waiting"] == 1
    assert engine.measures()["engine_kv_cache_usage_ratio"] > 0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [True] * 3
    assert engine.measures()["engine_requests_running"] == 0
    began = time.monotonic()
    await engine.handle({"prompt": "The sea is", "max_tokens": 1}, Collector())
    # One of the stopped calls alone would take some 20 s more.
    assert time.monotonic() - began < 5


async def check_counts(engine: Engine) -> None:
    """Checks that the counters grow by what a call used, and that a repeated prompt is found in the cache."""
    prompt = {"prompt": "The sea is calm. " * 100, "max_tokens": 3, "temperature": 0}
    first, second = Collector(), Collector()
    before = engine.measures()
    await engine.handle(prompt, first)
    await engine.handle(prompt, second)
    after = engine.measures()
    size = first.usage.get("input_tokens", 0)
    assert after["engine_prompt_tokens"] - before["engine_prompt_tokens"] == 2 * size
    assert after["engine_generation_tokens"] - before["engine_generation_tokens"] == 6
    cached = second.usage.get("cached_tokens", 0)
    assert 0 < cached < size and first.usage.get("cached_tokens") == 0
    assert after["engine_prefix_cache_hits"] - before["engine_prefix_cache_hits"] == cached
    # Another scope shares no cache.
    other = Collector(scope="other")
    await engine.handle(prompt, other)
    assert other.usage.get("cached_tokens") == 0


async def check_end(engine: Engine) -> None:
    """Checks that a dead engine is told, and fails the calls in it."""
    job = Collector()
    task = asyncio.ensure_future(engine.handle(LONG, job))
    await job.began.wait()
    assert engine.health() is None
    manager: Any = engine.llm.engine_core.resources.engine_manager
    for process in manager.processes:
        os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(Fatal):
        await asyncio.wait_for(task, 30)
    assert "ended" in (engine.health() or "")
    with pytest.raises(Fatal):
        await engine.handle(LONG, Collector())


def test_stops_counts_and_the_end_of_the_engine() -> None:
    async def all_of_them() -> None:
        engine = Engine()
        await engine.load({"target": Path(MODEL)}, OPTIONS)
        assert engine.slots == 2
        await check_stops(engine)
        await check_counts(engine)
        await check_end(engine)
        engine.close()

    asyncio.run(all_of_them())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": "x"}, "`model` in .handler.options. cannot be set"),
        ({"enable_log_requests": True}, "`enable_log_requests` in .* cannot be set"),
        ({"max_modle_len": 3}, "`max_modle_len` in .* is no engine argument .* closest are `max_model_len`"),
        ({"dtype": "floaty"}, "`dtype` in .* is not valid: .*'floaty'"),
        ({"max_model_len": "many"}, "`max_model_len` in .* is not valid"),
    ],
    ids=str,
)
def test_a_wrong_option_is_told_in_one_sentence(options: dict[str, Any], told: str) -> None:
    with pytest.raises(Fatal, match=told) as refused:
        asyncio.run(Engine().load({"target": Path(MODEL)}, options))
    assert "\n" not in str(refused.value)


def test_a_missing_model_is_told_in_one_sentence() -> None:
    with pytest.raises(Fatal, match="set `target` in .models."):
        asyncio.run(Engine().load({}, {}))
