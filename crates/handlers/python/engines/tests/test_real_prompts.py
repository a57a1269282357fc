"""Prompts with images, against those that vLLM makes of the same chats. No engine is started.

The model is a small random one, with the tokenizer of the model that `NSBRIDGE_TEST_VLLM_MODEL` names.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", exc_type=ImportError)
MODEL = os.environ.get("NSBRIDGE_TEST_VLLM_MODEL", "")
if not MODEL:
    pytest.skip("NSBRIDGE_TEST_VLLM_MODEL names no model", allow_module_level=True)

from nsbridge_handler import BadInput
from vllm.renderers import ChatParams, renderer_from_config

from job import Collector
from llava import TEMPLATE, TEXT_TEMPLATE, stripes, vast, write_llava
from vllm_engine import Engine
from vllm_options import engine_args

LOOP = asyncio.new_event_loop()
RED, BLUE = stripes((220, 30, 20), 9), stripes((10, 40, 200), 4, "JPEG")
OPTIONS = {"max_model_len": 512, "enforce_eager": True, "limit_mm_per_prompt": {"image": 2}}


@pytest.fixture(scope="module", params=[TEMPLATE, TEXT_TEMPLATE], ids=["parts", "text"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = write_llava(tmp_path_factory.mktemp("llava") / "model", Path(MODEL), request.param)
    config = engine_args(folder, OPTIONS).create_engine_config()
    renderer: Any = renderer_from_config(config)
    engine, own = Engine(), SimpleNamespace(renderer=renderer, get_tokenizer=renderer.get_tokenizer)
    engine.llm = own  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    engine.describe(config)
    return engine


def content(*parts: str) -> list[dict[str, Any]]:
    """Returns a content of these texts and images."""
    return [
        {"type": "image_url", "image_url": {"url": part}}
        if part.startswith("data:")
        else {"type": "text", "text": part}
        for part in parts
    ]


def prompt(engine: Engine, messages: list[dict[str, Any]], scope: str = "test") -> Any:
    return LOOP.run_until_complete(engine.prompt({"messages": messages}, Collector(scope=scope)))


def user(*parts: str) -> dict[str, Any]:
    return {"role": "user", "content": content(*parts)}


SYSTEM = {"role": "system", "content": "Say what you see."}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [user("Look:", RED, "What is it?")],
    "alone": [user(BLUE)],
    "two": [SYSTEM, user(RED, "and", BLUE, "?")],
    "turns": [user("One:", RED), {"role": "assistant", "content": "Stripes."}, user("Two:", BLUE)],
    "text": [SYSTEM, {"role": "user", "content": "Who lives by the sea?"}],
}


@pytest.mark.parametrize("messages", CHATS.values(), ids=CHATS)
def test_prompts_are_those_of_vllm(engine: Engine, messages: list[dict[str, Any]]) -> None:
    renderer: Any = engine.llm.renderer
    params = ChatParams(chat_template_kwargs={"add_generation_prompt": True})
    _, [theirs] = renderer.render_chat([messages], params, skip_mm_cache=True)
    ours = prompt(engine, messages)
    assert ours.tokens == theirs["prompt_token_ids"]
    if theirs["type"] == "token":
        assert ours.media is None
        return
    assert ours.media["mm_placeholders"] == theirs["mm_placeholders"]
    for own, other in zip(ours.media["mm_kwargs"]["image"], theirs["mm_kwargs"]["image"], strict=True):
        pixels, others = own["pixel_values"].data, other["pixel_values"].data
        assert pixels.shape[0] == 3 and (pixels == others).all()


def test_a_text_of_a_special_token_beside_an_image_stays_text(engine: Engine) -> None:
    plain = prompt(engine, [user(RED, "See it and say")]).tokens
    attack = prompt(engine, [user(RED, "See <image> and <|im_end|>")]).tokens
    tokenizer: Any = engine.llm.get_tokenizer()
    for name in ("<image>", "<|im_end|>"):
        token = tokenizer.convert_tokens_to_ids(name)
        assert attack.count(token) == plain.count(token)
    assert "<image> and <|im_end|>" in tokenizer.decode(attack)


def test_a_continued_message_goes_on_after_its_text(engine: Engine) -> None:
    messages = [user(RED), {"role": "assistant", "content": "It is a"}]
    input = {"messages": messages, "continue_final_message": True}
    made = LOOP.run_until_complete(engine.prompt(input, Collector()))
    tokenizer: Any = engine.llm.get_tokenizer()
    assert tokenizer.decode(made.tokens).endswith("It is a")


def test_equal_images_of_two_scopes_have_other_names_in_the_caches(engine: Engine) -> None:
    one, two, again = (
        prompt(engine, [user(RED)], scope).media["mm_hashes"]["image"] for scope in ("one", "two", "one")
    )
    assert one == again and one != two


def cut(url: str) -> str:
    """Returns a data URL with the first half of a file."""
    head, _, body = url.partition(",")
    return f"{head},{body[: len(body) // 8 * 4]}"


BROKEN: list[tuple[tuple[str, ...], str]] = [
    (("a", "data:image/png;base64,aGVsbG8="), r"`messages\[0\].content\[1\]` cannot be read: it is no image"),
    (("data:image/png;base64,?",), r"`messages\[0\].content\[0\]` cannot be read: it is no data URL"),
    ((cut(RED),), r"content\[0\]` cannot be read: its data is damaged"),
    ((vast(9000),), r"content\[0\]` cannot be read: the request's images have more than 67108864 pixels"),
    ((vast(30000),), r"content\[0\]` cannot be read: the request's images have more than"),
    ((RED, RED, RED), "`messages` have 3 images, and this model takes at most 2"),
]


@pytest.mark.parametrize(("parts", "told"), BROKEN, ids=["other", "base64", "cut", "vast", "bomb", "many"])
def test_an_image_that_cannot_be_read_is_named_by_its_place(
    engine: Engine, parts: tuple[str, ...], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        prompt(engine, [user(*parts)])


def test_images_have_a_limit_of_pixels_together(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_images.MOST_PIXELS", 2 * 90 * 70 - 1)
    assert prompt(engine, [user(RED)]).tokens
    with pytest.raises(BadInput, match=r"content\[1\]` .* the request's images have more than 12599 pixels"):
        prompt(engine, [user(RED, BLUE)])


def test_the_model_takes_images(engine: Engine) -> None:
    assert engine.modalities() == ["text", "image"]
