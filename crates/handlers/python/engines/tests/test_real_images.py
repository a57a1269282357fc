"""Replies to chats with images by a real vLLM.

The model is a small random one, with the tokenizer of the model that `NSBRIDGE_TEST_VLLM_MODEL` names.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", exc_type=ImportError)
MODEL = os.environ.get("NSBRIDGE_TEST_VLLM_MODEL", "")
if not MODEL:
    pytest.skip("NSBRIDGE_TEST_VLLM_MODEL names no model", allow_module_level=True)

from vllm import LLM, SamplingParams

from job import Collector
from llava import stripes, write_llava
from vllm_engine import Engine

OPTIONS: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "limit_mm_per_prompt": {"image": 2},
}
LOOP = asyncio.new_event_loop()
RED, BLUE = stripes((220, 30, 20), 9), stripes((10, 40, 200), 4, "JPEG")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llava(tmp_path_factory.mktemp("llava") / "model", Path(MODEL))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    engine = Engine()
    LOOP.run_until_complete(engine.load({"target": folder}, OPTIONS))
    yield engine
    engine.close()


def run(engine: Engine, input: dict[str, Any], **fields: Any) -> Collector:
    job = Collector(**fields)
    LOOP.run_until_complete(engine.handle(input, job))
    return job


def tokens(pieces: list[Any]) -> list[int]:
    return [piece["token"] for piece in pieces]


def asked(*parts: str, **fields: Any) -> dict[str, Any]:
    """Returns a request whose message has these texts and images."""
    content = [
        {"type": "image_url", "image_url": {"url": part}}
        if part.startswith("data:")
        else {"type": "text", "text": part}
        for part in parts
    ]
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "temperature": 0, "max_tokens": 10, **fields}


def test_other_images_get_other_replies(engine: Engine) -> None:
    replies = [tokens(run(engine, asked("Look:", image)).pieces) for image in (RED, BLUE, RED)]
    assert replies[0] != replies[1]
    assert replies[0] == replies[2]


@pytest.mark.parametrize("more", [{}, {"frequency_penalty": 0.5}], ids=["prompt", "forced"])
def test_a_later_attempt_goes_on_with_the_image(engine: Engine, more: dict[str, Any]) -> None:
    input = asked("Look:", RED, "What is it?", **more)
    whole = run(engine, input)
    for place in (1, 6, 10):
        later = run(engine, input, before=whole.pieces[:place], attempt=2)
        assert later.all == whole.pieces
        for count in ("input_tokens", "output_tokens"):
            assert later.usage.get(count) == whole.usage.get(count)


def test_several_replies_share_the_images(engine: Engine) -> None:
    job = run(engine, asked("Look:", RED, n=3, temperature=1.0))
    assert {piece.get("index", 0) for piece in job.pieces} == {0, 1, 2}


def test_a_stopped_request_leaves_its_image_usable(engine: Engine) -> None:
    input = asked("Look:", stripes((90, 90, 0), 3), max_tokens=200, ignore_eos=True)

    async def stop() -> None:
        for pause in (0.0, 0.01, 0.05, 0.2):
            task = asyncio.ensure_future(engine.handle(input, Collector()))
            await asyncio.sleep(pause)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    LOOP.run_until_complete(stop())
    assert len(run(engine, {**input, "max_tokens": 5}).pieces) == 5


def test_scopes_share_no_cache_of_prompts(engine: Engine) -> None:
    input = asked("The sea is calm. " * 60, stripes((1, 2, 3), 5), max_tokens=1)
    scopes = ("one", "two", "one")
    cached = [run(engine, input, scope=scope).usage.get("cached_tokens", 0) for scope in scopes]
    assert cached[:2] == [0, 0] and cached[2] > 0


def test_a_token_of_an_image_without_one_does_no_harm(engine: Engine) -> None:
    tokenizer: Any = engine.llm.get_tokenizer()
    token = tokenizer.convert_tokens_to_ids("<image>")
    run(engine, {"prompt_token_ids": [5, token, token, 6], "temperature": 0, "max_tokens": 3})
    assert engine.health() is None
    assert tokens(run(engine, asked(RED)).pieces)


def test_replies_are_those_of_vllm(engine: Engine, folder: Path) -> None:
    vllm: Any = LLM(str(folder), **OPTIONS)
    for parts in (("Look:", RED, "What is it?"), (BLUE,), (RED, "and", BLUE)):
        input = asked(*parts)
        job = run(engine, input)
        params = SamplingParams(temperature=0, max_tokens=10)
        [output] = vllm.chat(input["messages"], params, use_tqdm=False)
        assert tokens(job.pieces) == list(output.outputs[0].token_ids)
        assert job.usage.get("input_tokens") == len(output.prompt_token_ids)
