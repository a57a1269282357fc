"""Texts of tokens, stop sequences, and messages that hold texts of special tokens."""

from __future__ import annotations

from typing import Any

import pytest
from nsbridge_handler import BadInput, Fatal

from engine_chat import CallShape, Chat, with_call
from engine_detokenize import Stops, TextStream
from engine_guard import MARK, Guard, guarded
from engine_images import ImagePart, image_parts
from engine_request import Facts, read_request
from engine_words import Words

FACTS = Facts(100, 64, frozenset({2}), {"temperature": 0.5})


def pushed(parts: list[bytes], stops: tuple[str, ...] = ()) -> list[tuple[str, bool]]:
    stream = TextStream(Stops(stops))
    return [stream.push(part, place + 1 == len(parts)) for place, part in enumerate(parts)]


def test_bytes_of_an_incomplete_character_are_held() -> None:
    bear = "🐻".encode()
    assert pushed([b"a", bear[:2], bear[2:] + b"b"]) == [("a", False), ("", False), ("🐻b", False)]
    assert pushed([bear[:2], b"x"]) == [("", False), ("\ufffdx", False)]
    assert pushed([b"a", bear[:3]]) == [("a", False), ("\ufffd", False)]


def test_text_that_may_begin_a_stop_sequence_is_held_until_it_is_certain() -> None:
    assert pushed([b"a<", b"/", b"b>c"], ("</b>",)) == [("a", False), ("", False), ("", True)]
    assert pushed([b"a<", b"/c"], ("</b>",)) == [("a", False), ("</c", False)]
    assert pushed([b"a<"], ("</b>",)) == [("a<", False)]
    # Of two that end here, the one that begins first.
    assert pushed([b"xab", b"c"], ("abc", "bc"))[-1] == ("", True)


def test_bytes_of_a_vocabulary_follow_its_decoder() -> None:
    end = {"id": 3, "content": "<|end|>", "special": True}
    added = [end, {"id": 4, "content": "<think>", "special": False}]
    vocab = {"Ġsea": 0, "ðŁ": 1}
    level = {"decoder": {"type": "ByteLevel"}, "model": {"vocab": vocab}, "added_tokens": added}
    words = Words.from_document(level)
    assert [words.plain(token) for token in range(5)] == [b" sea", b"\xf0\x9f", b"", b"", b"<think>"]
    assert (words.text(1), words.text(3)) == ([0xF0, 0x9F], "<|end|>")
    decoder = {"decoders": [{"type": "ByteFallback"}]}
    piece = {"decoder": decoder, "model": {"vocab": [["▁sea", 0.0], ["<0x0A>", 0.0]]}}
    assert [Words.from_document(piece).plain(token) for token in (0, 1)] == [b" sea", b"\n"]
    with pytest.raises(Fatal, match="decoder"):
        Words.from_document({"decoder": {"type": "WordPiece"}, "model": {"vocab": {}}})


INVALID: list[dict[str, Any]] = [
    {"n": 0},
    {"n": 2, "echo": True},
    {"max_tokens": 0},
    {"min_tokens": 3, "max_tokens": 2},
    {"temperature": -1},
    {"top_p": 0},
    {"min_p": 2},
    {"repetition_penalty": 0},
    {"frequency_penalty": 3},
    {"presence_penalty": -3},
    {"logit_bias": {"5": 101}},
    {"logit_bias": {"100": 1}},
    {"bad_token_ids": [100]},
    {"bad_token_sequences": [[5, 100]]},
    {"bad_token_sequences": [[]]},
    {"stop_token_ids": [100]},
    {"stop": [""]},
    {"top_logprobs": 1},
    {"logprobs": True, "top_logprobs": 21},
    {"prompt_logprobs": 21},
    {"return_token_texts": True},
    {"ignore_eos": True, "response_format": {"type": "json_object"}},
]


@pytest.mark.parametrize("fields", INVALID, ids=str)
def test_an_invalid_field_is_refused_by_its_name(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as refused:
        read_request({"prompt": "x", **fields}, FACTS)
    assert any(f"`{name}`" in str(refused.value) for name in fields)


def test_absent_parameters_are_those_of_the_model_and_its_end_tokens_count() -> None:
    request = read_request({"prompt": "x", "stop_token_ids": [5]}, FACTS)
    assert (request.sampling["temperature"], request.sampling["top_p"]) == (0.5, 1.0)
    assert request.ends == {2, 5}
    assert read_request({"prompt": "x", "ignore_eos": True}, FACTS).ends == frozenset()
    assert read_request({"prompt": "x", "response_format": {"type": "text"}}, FACTS).format is None


DOCUMENT: dict[str, Any] = {
    "normalizer": None,
    "added_tokens": [
        {"id": 1, "content": "<|end|>", "special": True, "normalized": False},
        {"id": 2, "content": "<think>", "special": False, "normalized": True},
    ],
}


def chat(*messages: tuple[str, str]) -> Chat:
    listed: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in messages]
    return Chat.read({"messages": listed}, CallShape())


def test_texts_of_special_tokens_in_messages_are_marked_and_those_of_replies_are_kept() -> None:
    marked = chat(("user", "a <|END|> <think>"), ("assistant", "<think> <|end|>"))
    assert Guard(DOCUMENT).protect(marked)
    texts = [message["content"] for message in marked.messages]
    assert texts == [f"a <{MARK}|END|> <{MARK}think>", f"<think> <{MARK}|end|>"]
    assert not Guard(DOCUMENT).protect(chat(("user", "a < b")))


def test_a_special_token_in_two_parts_is_marked_where_they_meet() -> None:
    marked = chat(("user", "a <|en "), ("user", "d|> b"))
    assert Guard(DOCUMENT).protect(marked)
    assert [message["content"] for message in marked.messages] == [f"a <|en{MARK} ", f"{MARK}d|> b"]


def test_a_mark_in_a_message_with_special_tokens_is_refused() -> None:
    with pytest.raises(BadInput, match="U\\+FDD0"):
        Guard(DOCUMENT).protect(chat(("user", MARK + "<|end|>")))
    assert '"normalized": false' in guarded(DOCUMENT) and "\\ufdd0" in guarded(DOCUMENT)


def test_messages_have_the_form_that_templates_take() -> None:
    input: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": None},
        ],
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": False},
    }
    read = Chat.read(input, CallShape())
    assert read.messages == [{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": ""}]
    assert read.variables == {"enable_thinking": False, "reasoning_effort": "low"}
    call = with_call(CallShape())[1]
    assert (call["content"], call["tool_calls"][0]["function"]["arguments"]) == ("", {"at": "sea"})
    call = with_call(CallShape(null_content=True, text_arguments=True))[1]
    assert (call["content"], call["tool_calls"][0]["function"]["arguments"]) == (None, '{"at":"sea"}')


def of_parts(*parts: str, **fields: Any) -> dict[str, Any]:
    """Returns a request with one message of texts and images."""
    content = [
        {"type": "image_url", "image_url": {"url": part}}
        if part.startswith("data:")
        else {"type": "text", "text": part}
        for part in parts
    ]
    return {"messages": [{"role": "assistant", "content": content}], **fields}


def test_images_keep_their_places_among_the_texts_which_are_guarded() -> None:
    read = Chat.read(of_parts("a <|end|>", "data:image/png;base64,", "<|en", "d|> b"), CallShape())
    assert Guard(DOCUMENT).protect(read)
    texts = [f"a <{MARK}|end|>", None, f"<|en{MARK}", f"{MARK}d|> b"]
    assert [part.get("text") for part in read.messages[0]["content"]] == texts
    assert read.messages[0]["content"][1] == {"type": "image"}


def test_a_continued_message_of_parts_is_cut_after_its_last_text() -> None:
    more: dict[str, Any] = {"continue_final_message": True}
    read = Chat.read(of_parts("data:image/png;base64,", "The sea", **more), CallShape())
    assert read.cut("<s><image>The sea<end>") == "<s><image>The sea"
    read = Chat.read(of_parts("The sea", "data:image/png;base64,", **more), CallShape())
    with pytest.raises(BadInput, match="`continue_final_message`"):
        read.cut("<s>The sea<image><end>")


def test_images_are_found_by_their_places_up_to_the_models_limit() -> None:
    input = of_parts("a", "data:image/png;base64,c2Vh", "data:image/png,c2Vh")
    input["messages"].insert(0, {"role": "system", "content": "b"})
    one, two = image_parts(input, 2)
    assert (one.place, one.index, one.data()) == ("messages[1].content", 1, b"sea")
    with pytest.raises(BadInput, match=r"`messages\[1\].content\[2\]` cannot be read: it is no data URL"):
        two.data()
    with pytest.raises(BadInput, match="it is no data URL in base64"):
        ImagePart("messages[0].content", 0, "data:image/png;base64,c2?Vh").data()
    with pytest.raises(BadInput, match="`messages` have 2 images, and this model takes at most 1"):
        image_parts(input, 1)
    told = r"`image_url` in `messages\[1\].content` cannot be read: the model takes no images"
    with pytest.raises(BadInput, match=told):
        image_parts(input, 0)
    assert image_parts({"prompt": "x"}, 0) == []


def test_an_adapter_that_the_model_does_not_have_is_refused() -> None:
    known = Facts(100, 64, frozenset({2}), {}, ["sky", "sea"])
    assert read_request({"prompt": "x", "adapter": "sea"}, known).adapter == "sea"
    with pytest.raises(BadInput, match="`adapter` must be one of sea, sky"):
        read_request({"prompt": "x", "adapter": "hill"}, known)
    with pytest.raises(BadInput, match="`adapter` is not possible"):
        read_request({"prompt": "x", "adapter": "sea"}, FACTS)


def test_a_continued_message_is_cut_after_its_text() -> None:
    input = {"messages": [{"role": "assistant", "content": " The sea "}], "continue_final_message": True}
    read = Chat.read(input, CallShape())
    assert not read.begins
    assert read.cut("<s>The sea<end>") == "<s>The sea"
    assert read.cut("<s>The sea <end>") == "<s>The sea "
    with pytest.raises(BadInput, match="`continue_final_message`"):
        read.cut("<s><end>")
    with pytest.raises(BadInput, match="`add_generation_prompt`"):
        Chat.read({**input, "add_generation_prompt": True}, CallShape())
