"""Adapter of SGLang with a stand-in of the recorded interface. The real SGLang needs a GPU."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional, cast

import pytest
from nsbridge_handler import BadInput, Fatal, Retry

import sglang_fake as fake
import sglang_signals
from job import Collector
from sglang_engine import Embedder, Engine
from sglang_forced import FORCED, Forced
from sglang_options import REFUSED, server_args
from sglang_running import Running

MODELS = {"target": Path("/models/base"), "sql": Path("/models/sql"), "draft": Path("/models/draft")}
PLAIN: dict[str, Any] = {"prompt": "abc", "max_tokens": 12}
SCHEMA: dict[str, Any] = {
    **PLAIN,
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
}
REPEATED = {**PLAIN, "repetition_penalty": 1.5}


@pytest.fixture(autouse=True)
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    child = SimpleNamespace(pid=1, living=True)
    child.is_alive = lambda: child.living
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [child, SimpleNamespace(pid=2)])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.14.1"))
    yield child
    sglang_signals.failed.clear()


async def loaded(*adapters: str, **options: Any) -> tuple[Engine, fake.Engine]:
    engine = Engine()
    await engine.load(MODELS, options, adapters)
    return engine, cast(fake.Engine, engine.engine)


def run(
    input: dict[str, Any],
    before: Any = (),
    options: Optional[dict[str, Any]] = None,
    change: Optional[dict[str, Any]] = None,
    **fields: Any,
) -> tuple[Collector, fake.Engine]:
    async def answer() -> tuple[Collector, fake.Engine]:
        engine, sglang = await loaded(*fields.pop("adapters", ()), **(options or {}))
        for name, value in (change or {}).items():
            setattr(sglang, name, value)
        job = Collector(before=before, attempt=2 if before else 1, **fields)
        await engine.handle(input, cast(Any, job))
        return job, sglang

    return asyncio.run(answer())


@pytest.mark.parametrize("steps", [1, 5])
def test_a_reply_has_every_token_once_however_many_come_at_a_time(steps: int) -> None:
    job, sglang = run(PLAIN, change={"steps": steps})
    assert [piece["token"] for piece in job.pieces] == [piece["token"] for piece in run(PLAIN)[0].pieces]
    assert (len(job.pieces), job.reason) == (12, "length")
    assert job.usage == {"input_tokens": 3, "output_tokens": 12, "cached_tokens": 3}
    [asked] = sglang.asked
    assert asked["cache_salt"] == "test" and not asked["return_logprob"] and asked["priority"] is None
    assert not sglang.alive and not sglang.aborted


@pytest.mark.parametrize("input", [PLAIN, {**PLAIN, "n": 3}, SCHEMA, REPEATED], ids=str)
def test_a_later_attempt_continues_the_first(input: dict[str, Any]) -> None:
    whole, _ = run(input)
    for place in range(1, len(whole.pieces) + 1):
        job, sglang = run(input, before=whole.pieces[:place])
        assert (job.all, job.reason) == (whole.pieces, whole.reason)
        assert len(job.pieces) == len(whole.pieces) - place
        forced = [call["sampling_params"].get("custom_params") for call in sglang.asked]
        assert any(forced) is (input in (SCHEMA, REPEATED) and bool(forced))


def test_pieces_that_the_model_would_not_choose_are_taken_over_too() -> None:
    before = [{"token": fake.WORDS[letter], "text": letter} for letter in "xyz"]
    job, sglang = run(REPEATED, before=before)
    assert job.all[:3] == before and len(job.pieces) == 9
    [asked] = sglang.asked
    assert asked["input_ids"] == [fake.WORDS[letter] for letter in "abc"]
    assert asked["sampling_params"]["max_new_tokens"] == 12


def test_the_pieces_of_a_schema_are_its_text() -> None:
    assert run(SCHEMA)[0].text == fake.JSON


@pytest.mark.parametrize("options", [{"speculative_algorithm": "NGRAM"}, {"enable_watermark": True}], ids=str)
def test_a_reply_that_cannot_be_forced_begins_anew(options: dict[str, Any]) -> None:
    whole, _ = run(SCHEMA)
    job, sglang = run(SCHEMA, before=whole.pieces[:3], options=options)
    assert job.pieces == job.all == whole.pieces
    assert sglang.asked[0]["custom_logit_processor"] is None
    assert len(run(PLAIN, before=run(PLAIN)[0].pieces[:3], options=options)[0].pieces) == 9


def test_stops_are_found_in_the_text_and_stop_tokens_by_sglang() -> None:
    text = run(PLAIN)[0].text
    job, _ = run({**PLAIN, "stop": [text[3:5]]})
    assert (job.text, job.reason) == (text[:3], "stop_text")
    job, sglang = run({**PLAIN, "stop_token_ids": [fake.WORDS[text[2]]]})
    assert (job.text, job.reason) == (text[:2], "stop")
    assert sglang.asked[0]["sampling_params"]["stop_token_ids"] == [fake.WORDS[text[2]]]
    ended = {**PLAIN, "logit_bias": {str(fake.END): 50}}
    assert [len(run({**ended, "min_tokens": least})[0].pieces) for least in (0, 3)] == [1, 4]


def test_banned_tokens_are_not_chosen_but_where_nothing_else_is_left() -> None:
    first = run(PLAIN)[0].pieces[0]["token"]
    assert run({**PLAIN, "bad_token_ids": [first]})[0].pieces[0]["token"] != first
    assert run({**PLAIN, "bad_token_sequences": [[first]]})[0].pieces[0]["token"] != first
    with pytest.raises(BadInput, match="`bad_token_ids` leave no token"):
        run({**SCHEMA, "bad_token_ids": [fake.WORDS["{"]]})
    with pytest.raises(BadInput, match="`bad_token_sequences` of more than one token"):
        run({**PLAIN, "bad_token_sequences": [[first, first]]})


def test_log_probabilities_are_those_of_each_token() -> None:
    job, sglang = run({**PLAIN, "logprobs": True, "top_logprobs": 2}, change={"steps": 3})
    assert all(piece["logprob"] == -piece["token"] / 8 for piece in job.pieces)
    assert all([top["token"] for top in piece["top_logprobs"]] == [0, 1] for piece in job.pieces)
    assert sglang.asked[0]["logprob_start_len"] == -1
    assert "logprob" not in run({**PLAIN, "prompt_logprobs": 0})[0].pieces[-1]


def test_an_echoed_prompt_has_log_probabilities_but_for_its_first_token() -> None:
    job, sglang = run({**PLAIN, "echo": True, "logprobs": True, "max_tokens": 0})
    assert [piece.get("logprob") for piece in job.pieces] == [None, *(-token / 8 for token in (11, 12))]
    assert job.text == "abc" and sglang.asked[0]["logprob_start_len"] == 0
    for fields, tops in (({}, [0, 1, 1, 0]), ({"logprobs": True, "top_logprobs": 3}, [0, 1, 1, 3])):
        job, _ = run({**PLAIN, "prompt_logprobs": 1, **fields})
        assert [len(piece.get("top_logprobs", ())) for piece in job.pieces[:4]] == tops


def test_a_canceled_call_is_aborted_under_a_name_that_no_other_begins_with() -> None:
    async def cancel() -> fake.Engine:
        engine, sglang = await loaded()
        job = Collector()
        task = asyncio.ensure_future(engine.handle({**PLAIN, "n": 12, "max_tokens": 60}, cast(Any, job)))
        await job.began.wait()
        running = list(sglang.alive)
        assert len(running) == 12
        assert not any(one != other and other.startswith(one) for one in running for other in running)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return sglang

    assert not asyncio.run(cancel()).alive


def test_what_still_runs_is_aborted_even_if_its_outputs_are_closed_without_a_trace() -> None:
    async def stop() -> None:
        engine, sglang = await loaded()
        sglang._outputs = lambda arguments: _endless()  # type: ignore[method-assign]
        job = Collector()
        task = asyncio.ensure_future(engine.handle(PLAIN, cast(Any, job)))
        await job.began.wait()
        [asked] = sglang.asked
        sglang.alive[asked["rid"]] = True
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert sglang.aborted == [asked["rid"]]

    async def _endless() -> Any:
        yield {"output_ids": [11], "meta_info": {"finish_reason": None}}
        await asyncio.Event().wait()

    asyncio.run(stop())


@pytest.mark.parametrize("how", ["signal", "exit"])
def test_an_end_of_sglang_ends_every_request_and_the_health(how: str, child: SimpleNamespace) -> None:
    async def end() -> None:
        engine, sglang = await loaded()
        sglang.stuck = True
        task = asyncio.ensure_future(engine.handle({**PLAIN, "n": 2}, cast(Any, Collector())))
        while len(sglang.alive) < 2:
            await asyncio.sleep(0)
        assert engine.health() is None
        if how == "signal":
            sglang_signals.note(3, None)
        child.living = how != "exit"
        # From a thread without the loop, as the runner does.
        assert await asyncio.to_thread(engine.health) == "a process of SGLang has ended"
        with pytest.raises(Fatal, match="has ended"):
            await task
        with pytest.raises(Fatal, match="has ended"):
            await engine.handle(PLAIN, cast(Any, Collector()))

    asyncio.run(asyncio.wait_for(end(), 10))


def test_ends_that_are_none_are_told_or_tried_again() -> None:
    abort = fake.reason("FINISH_ABORT", message="Failed to compile\nthe schema", status_code=400)
    with pytest.raises(BadInput, match="Failed to compile the schema"):
        run(SCHEMA, change={"end": abort})
    for end in (
        fake.reason("FINISH_ABORT", message="Aborted"),
        fake.reason("FINISH_ABORT", message="queue", status_code=503),
        fake.reason("FINISH_MATCHED_STR", matched="NaN happened"),
    ):
        with pytest.raises(Retry, match="early"):
            run(PLAIN, change={"end": end})
    failed = fake.reason("FINISH_ABORT", message="accept_token", status_code=500)
    with pytest.raises(BadInput, match="`min_tokens` leave no token"):
        run({**SCHEMA, "min_tokens": 5}, change={"end": failed})
    with pytest.raises(BadInput, match="repetition_penalty must be"):
        run({**PLAIN, "repetition_penalty": 3.0})


def test_images_and_other_tasks_are_refused() -> None:
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    with pytest.raises(BadInput, match="takes no images"):
        run({"messages": [{"role": "user", "content": [image]}]})
    job, _ = run({"messages": [{"role": "user", "content": "sea"}], "max_tokens": 2})
    assert job.usage.get("input_tokens") == 3
    with pytest.raises(Fatal, match="text alone"):
        asyncio.run(Embedder().load(MODELS, {}))


def test_an_adapter_is_named_to_sglang() -> None:
    job, sglang = run({**PLAIN, "adapter": "sql"}, adapters=["sql"])
    assert sglang.asked[0]["lora_path"] == "sql" and len(job.pieces) == 12
    assert cast(Any, sglang.server_args).lora_paths == [{"lora_name": "sql", "lora_path": "/models/sql"}]
    with pytest.raises(BadInput, match="`adapter`"):
        run({**PLAIN, "adapter": "sql"})


@pytest.mark.parametrize(("lower_first", "priority"), [(False, -5), (True, 5)])
def test_a_lower_priority_is_earlier_whichever_way_sglang_counts(lower_first: bool, priority: int) -> None:
    options = {"enable_priority_scheduling": True, "schedule_low_priority_values_first": lower_first}
    assert run({**PLAIN, "priority": 5}, options=options)[1].asked[0]["priority"] == priority


def test_facts_measures_and_version_are_those_of_sglang() -> None:
    async def ask() -> None:
        engine, sglang = await loaded("sql", max_running_requests=7, tensor_parallel_size=2)
        assert engine.slots == 7
        assert engine.version.startswith("sglang 0.5.23 2.14.1 ") and engine.version.endswith(" sql")
        assert engine.facts.context == fake.CONTEXT and engine.facts.ends == {fake.END}
        await engine.handle(PLAIN, cast(Any, Collector()))
        measures = engine.measures()
        assert measures["engine_requests_running"] == 2 and measures["engine_requests_waiting"] == 1
        assert measures["engine_kv_cache_usage_ratio"] == 0.5
        assert measures["engine_prompt_tokens"] == 3 and measures["engine_prefix_cache_hits"] == 4
        assert measures["engine_generation_tokens"] == 12
        assert sglang.server_args.incremental_streaming_output
        assert sglang.server_args.custom_sigquit_handler is sglang_signals.note
        engine.close()
        assert sglang.closed

    asyncio.run(ask())


def test_a_start_that_fails_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**arguments: Any) -> None:
        raise RuntimeError("Rank 0 scheduler died\nduring initialization")

    monkeypatch.setattr(sys.modules["sglang.srt.entrypoints.engine"], "Engine", fail)
    with pytest.raises(Fatal, match="^SGLang does not start: Rank 0 scheduler died during initialization$"):
        asyncio.run(loaded())
    with pytest.raises(Fatal, match="set `target` in .models."):
        asyncio.run(Engine().load({}, {}))
    for name in [name for name in sys.modules if name.startswith("sglang.")] + ["sglang"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(Fatal, match="SGLang is not installed"):
        asyncio.run(loaded())


def test_options_are_sglangs_own_by_any_of_their_names() -> None:
    given: dict[str, Any] = {
        "tp_size": 2,
        "data_parallel_size": 3,
        "context_length": "8Ki",
        "chunked_prefill_size": -1,
        "mem_fraction_static": 0.8,
        "trust_remote_code": True,
        "disable_radix_cache": False,
        "dllm_fdfo": False,
        "quantization": "fp8",
        "gc_threshold": [700, 10],
        "extra_metric_labels": {"a": "b"},
        "fp8_gemm_backend": "triton",
        "fp4_gemm_runner_backend": "marlin",
        "speculative_draft_model_path": "draft",
    }
    args: Any = server_args(MODELS, given, ())
    assert (args.model_path, args.tp_size, args.dp_size, args.context_length) == ("/models/base", 2, 3, 8192)
    assert (args.chunked_prefill_size, args.mem_fraction_static, args.quantization) == (-1, 0.8, "fp8")
    assert args.trust_remote_code and not args.disable_radix_cache and args.dllm_fdfo is False
    assert (args.gc_threshold, args.extra_metric_labels) == ([700, 10], {"a": "b"})
    assert (args.fp8_gemm_runner_backend, args.fp4_gemm_runner_backend) == ("triton", "marlin")
    assert args.speculative_draft_model_path == "/models/draft"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tensor_paralel_size": 2}, "`tensor_paralel_size` .* no argument .*`tensor_parallel_size`"),
        ({"xyzzyxyzzy": 2}, "`xyzzyxyzzy` in .handler.options. is no argument of SGLang$"),
        ({"tp_size": "two"}, "`tp_size` in .handler.options. is not valid: .*invalid int value: 'two'"),
        ({"quantization": "fp9"}, "`quantization` .* is not valid: .*invalid choice: 'fp9'"),
        ({"trust_remote_code": 3}, "`trust_remote_code` .* must be true or false"),
        ({"model": "other"}, "`model` .* cannot be set: the model is"),
        ({"log_requests": True}, "`log_requests` .* nothing of a request"),
        ({"api_key": "secret"}, "`api_key` .* SGLang's server"),
    ],
    ids=str,
)
def test_a_wrong_option_is_told_in_one_sentence(options: dict[str, Any], told: str) -> None:
    with pytest.raises(Fatal, match=told) as refused:
        server_args(MODELS, options, ())
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)


def test_every_refused_option_is_one_of_sglangs() -> None:
    flags = {flag.lstrip("-").replace("-", "_") for flag in fake.API["server_args_flags"]}
    assert not REFUSED.keys() - fake.API["server_args"].keys() - flags


def test_tokens_are_forced_in_their_rows_alone_and_in_the_reply_alone() -> None:
    def request(prompt: int, committed: int) -> Any:
        return SimpleNamespace(
            kv=SimpleNamespace(kv_committed_len=committed), origin_input_ids=[0] * prompt, output_ids=[]
        )

    none = float("-inf")
    params: list[Any] = [
        None,
        {"__req__": request(4, 4), FORCED: [1, 2]},
        {"__req__": request(4, 5), FORCED: [1, 2]},
        {"__req__": request(4, 6), FORCED: [1, 2]},
        {"__req__": request(4, 2), FORCED: [1, 2]},
        {"__req__": SimpleNamespace(), FORCED: [1, 2]},
        {FORCED: [1]},
    ]
    rows = fake.Rows([[0.5, 0.5, 0.5] for _ in params])
    Forced()(rows, params)
    same = [0.5, 0.5, 0.5]
    assert rows.rows == [same, [none, 0.0, none], [none, none, 0.0], same, same, same, same]


def test_outputs_of_a_request_keep_their_error() -> None:
    async def outputs() -> AsyncGenerator[Any, None]:
        yield {"output_ids": [1], "meta_info": {}}
        raise RuntimeError("broken")

    async def read() -> list[Any]:
        return [output async for output in Running().read(outputs())]

    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(read())
