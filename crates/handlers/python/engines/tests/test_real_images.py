"""Chats with images on a real vLLM.

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

from nsbridge_handler import BadInput
from vllm import LLM, SamplingParams

from job import Collector
from llava import stripes, vast, write_llava
from vllm_engine import Engine

LIMIT = {"image": 2}
OPTIONS: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "limit_mm_per_prompt": LIMIT,
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


@pytest.fixture(scope="module")
def vllm(folder: Path) -> Any:
    return LLM(str(folder), **OPTIONS)


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


@pytest.mark.parametrize(
    "parts",
    [("Look:", RED, "What is it?"), (BLUE,), (RED, "and", BLUE), (RED, "<image> <|im_end|>", BLUE)],
    ids=["one", "alone", "two", "special"],
)
def test_a_chat_with_images_is_answered_as_by_vllm(engine: Engine, vllm: Any, parts: tuple[str, ...]) -> None:
    input = asked(*parts)
    job = run(engine, input)
    if any("<image>" in part for part in parts):
        # vLLM itself takes the text for a third image.
        assert job.usage.get("input_tokens", 0) > 2 * 16
        return
    params = SamplingParams(temperature=0, max_tokens=10)
    [output] = vllm.chat(input["messages"], params, use_tqdm=False)
    assert tokens(job.pieces) == list(output.outputs[0].token_ids)
    assert job.usage.get("input_tokens") == len(output.prompt_token_ids or ())


def test_a_chat_of_text_is_answered_as_by_vllm(engine: Engine, vllm: Any) -> None:
    messages = [{"role": "user", "content": "Who lives by the sea?"}]
    job = run(engine, {"messages": messages, "temperature": 0, "max_tokens": 10})
    [output] = vllm.chat(messages, SamplingParams(temperature=0, max_tokens=10), use_tqdm=False)
    assert tokens(job.pieces) == list(output.outputs[0].token_ids)


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
        assert (later.all, later.usage) == (whole.pieces, {**later.usage, "output_tokens": 10})


def test_several_replies_share_the_images(engine: Engine) -> None:
    job = run(engine, asked("Look:", RED, n=3, temperature=1.0))
    assert {piece.get("index", 0) for piece in job.pieces} == {0, 1, 2}


def test_scopes_share_no_cache_of_images(engine: Engine) -> None:
    input = asked("The sea is calm. " * 10, stripes((1, 2, 3), 5), max_tokens=1)
    scopes = ("one", "two", "one")
    cached = [run(engine, input, scope=scope).usage.get("cached_tokens", 0) for scope in scopes]
    assert cached[:2] == [0, 0] and cached[2] > 0

    async def names(scope: str) -> Any:
        prompt = await engine.prompt(input, Collector(scope=scope))
        media: Any = prompt.media
        return media["mm_hashes"]

    # vLLM's caches of what the encoder makes of an image have these keys.
    one, two = (LOOP.run_until_complete(names(scope)) for scope in ("one", "two"))
    assert one != two


def test_a_token_of_an_image_without_one_does_no_harm(engine: Engine) -> None:
    tokenizer: Any = engine.llm.get_tokenizer()
    token = tokenizer.convert_tokens_to_ids("<image>")
    run(engine, {"prompt_token_ids": [5, token, token, 6], "temperature": 0, "max_tokens": 3})
    assert engine.health() is None
    assert tokens(run(engine, asked(RED)).pieces)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (
            ("a", "data:image/png;base64,aGVsbG8="),
            r"`messages\[0\].content\[1\]` cannot be read: it is no image",
        ),
        (("data:image/png;base64,?",), r"`messages\[0\].content\[0\]` cannot be read: it is no data URL"),
        ((RED[: len(RED) // 8 * 4],), r"content\[0\]` cannot be read: its data is damaged"),
        ((vast(9000),), r"content\[0\]` cannot be read: the request's images have more than 67108864 pixels"),
        ((vast(30000),), r"content\[0\]` cannot be read: the request's images have more than"),
        ((RED, RED, RED), "`messages` have 3 images, and this model takes at most 2"),
    ],
    ids=["other", "base64", "cut", "vast", "bomb", "many"],
)
def test_an_image_that_cannot_be_read_is_named_by_its_place(
    engine: Engine, parts: tuple[str, ...], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        run(engine, asked(*parts))


def test_images_have_a_limit_of_pixels_together(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_images.MOST_PIXELS", 2 * 90 * 70 - 1)
    assert run(engine, asked(RED)).pieces
    with pytest.raises(BadInput, match=r"content\[1\]` .* the request's images have more than 12599 pixels"):
        run(engine, asked(RED, BLUE))


def test_modalities_and_the_limit_are_those_of_the_model(engine: Engine) -> None:
    assert engine.modalities() == ["text", "image"]
