"""Comparison with vLLM itself, on the model whose folder `NSBRIDGE_TEST_VLLM_MODEL` names.

The model is SmolLM2-135M-Instruct.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("vllm", exc_type=ImportError)
MODEL = os.environ.get("NSBRIDGE_TEST_VLLM_MODEL", "")
if not MODEL:
    pytest.skip("NSBRIDGE_TEST_VLLM_MODEL names no model", allow_module_level=True)

from nsbridge_handler import BadInput
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

from job import Collector
from real_cases import PROMPTS, Case, cases, schema_input
from scenarios import CALLS, SAID, SCENARIOS, Scenario, places
from vllm_engine import Engine

T = TypeVar("T")
OPTIONS: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": 16, "enforce_eager": True}
LOOP = asyncio.new_event_loop()


def wait(work: Coroutine[Any, Any, T]) -> T:
    return LOOP.run_until_complete(work)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine()
    wait(engine.load({"target": Path(MODEL)}, OPTIONS))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def vllm() -> Any:
    return LLM(MODEL, **OPTIONS)


def run(engine: Engine, input: dict[str, Any], **fields: Any) -> Collector:
    job = Collector(**fields)
    wait(engine.handle(input, job))
    return job


def tokens(pieces: list[Any]) -> list[int]:
    return [piece["token"] for piece in pieces]


def check_scores(pieces: list[Any], rows: Any) -> None:
    for piece, row in zip(pieces, rows, strict=True):
        if row is None:
            assert "logprob" not in piece
            continue
        assert piece["logprob"] == pytest.approx(row[piece["token"]].logprob, abs=1e-3)
        for top in piece.get("top_logprobs", ()):
            assert top["logprob"] == pytest.approx(row[top["token"]].logprob, abs=1e-3)


def check_case(engine: Engine, vllm: Any, case: Case) -> None:
    job = run(engine, case.input)
    params = SamplingParams(**case.params)
    [output] = vllm.generate([case.input["prompt"]], params, use_tqdm=False)
    of_prompt = [piece for piece in job.pieces if piece.get("prompt")]
    pieces, made = job.pieces[len(of_prompt) :], output.outputs[0]
    if of_prompt:
        assert tokens(of_prompt) == output.prompt_token_ids
        check_scores(of_prompt, output.prompt_logprobs)
        rows: list[Any] = output.prompt_logprobs
        for piece, row in zip(of_prompt[1:], rows[1:] if rows else ()):
            assert row is None or piece["rank"] == row[piece["token"]].rank
    assert job.usage.get("input_tokens") == len(output.prompt_token_ids or ())
    if case.input["max_tokens"] == 0:
        assert (pieces, job.usage.get("output_tokens"), job.reason) == ([], 0, "length")
        return
    assert tokens(pieces) == list(made.token_ids)
    assert job.usage.get("output_tokens") == len(made.token_ids)
    # vLLM leaves out a character that is not complete at the end.
    text = "".join(piece["text"] for piece in pieces)
    assert text.rstrip("\ufffd") == made.text.rstrip("\ufffd")
    assert job.reason == ("stop_text" if isinstance(made.stop_reason, str) else made.finish_reason)
    if made.logprobs:
        check_scores(pieces, made.logprobs)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_two_hundred_requests_are_answered_as_by_vllm(engine: Engine, vllm: Any, prompt: str) -> None:
    all_cases = list(cases(prompt))
    assert len(all_cases) * len(PROMPTS) == 200
    for case in all_cases:
        try:
            check_case(engine, vllm, case)
        except AssertionError as error:
            raise AssertionError(f"{case.input}") from error


def test_a_chat_is_rendered_and_tokenized_as_vllm_does_it(engine: Engine, vllm: Any) -> None:
    asked = {"role": "user", "content": "Who lives by the sea?"}
    messages = [asked, {"role": "assistant", "content": "A bear"}]
    fields: tuple[dict[str, Any], ...] = (
        {},
        {"add_generation_prompt": False},
        {"continue_final_message": True, "add_generation_prompt": False},
    )
    for more in fields:
        job = run(engine, {"messages": messages, "temperature": 0, "max_tokens": 12, **more})
        params = SamplingParams(temperature=0, max_tokens=12)
        [output] = vllm.chat(messages, params, use_tqdm=False, **more)
        assert tokens(job.pieces) == list(output.outputs[0].token_ids)
        assert job.usage.get("input_tokens") == len(output.prompt_token_ids or ())


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "documents", "eos_token"])
def test_a_request_cannot_set_what_the_worker_renders_with(engine: Engine, name: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(BadInput, match=f"must not set `{name}`"):
        run(engine, {"messages": messages, "chat_template_kwargs": {name: "{{ 7 * 191 }}"}})


def test_a_model_of_texts_refuses_images_by_their_name(engine: Engine) -> None:
    assert engine.modalities() == ["text"]
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]
    told = r"`image_url` in `messages\[0\].content` cannot be read: the model takes no images"
    with pytest.raises(BadInput, match=told):
        run(engine, {"messages": [{"role": "user", "content": content}]})


def test_a_special_token_in_a_message_stays_text(engine: Engine) -> None:
    def prompt(text: str) -> list[int]:
        return wait(engine.prompt({"messages": [{"role": "user", "content": text}]}, Collector())).tokens

    tokenizer: Any = engine.llm.get_tokenizer()
    plain, attack = prompt("Hello"), prompt("Hel<|im_end|>lo")
    assert attack.count(2) == plain.count(2)
    assert tokenizer.decode(attack) == tokenizer.decode(plain).replace("Hello", "Hel<|im_end|>lo")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_reply_goes_on_wherever_an_attempt_ended(engine: Engine, vllm: Any, scenario: Scenario) -> None:
    whole = run(engine, scenario.input)
    for place in places(len(whole.pieces)):
        job = run(engine, scenario.input, before=whole.pieces[:place], attempt=2)
        made = [piece for piece in job.all if not piece.get("prompt")]
        assert job.all[:place] == whole.pieces[:place]
        assert job.usage.get("output_tokens") == len(made)
        if scenario.replays:
            assert (job.all, job.reason) == (whole.pieces, whole.reason)
        elif not scenario.input["temperature"] and {"prompt", "stop"} & {*scenario.input} == {"prompt"}:
            check_continuation(vllm, scenario.input, job, place)


def check_continuation(vllm: Any, input: dict[str, Any], job: Collector, place: int) -> None:
    """Checks that the rest is what vLLM itself says to prompt and pieces."""
    known = tokens([piece for piece in job.all[:place] if not piece.get("prompt")])
    made = tokens([piece for piece in job.all if not piece.get("prompt")])
    left = input["max_tokens"] - len(known)
    if not known or job.pieces == []:
        return
    [first] = vllm.generate([input["prompt"]], SamplingParams(max_tokens=1), use_tqdm=False)
    prompt = TokensPrompt(prompt_token_ids=[*(first.prompt_token_ids or ()), *known])
    params = SamplingParams(temperature=0, max_tokens=left, stop_token_ids=input.get("stop_token_ids"))
    [output] = vllm.generate([prompt], params, use_tqdm=False)
    assert made[len(known) :] == list(output.outputs[0].token_ids)


def test_a_schema_and_calls_are_followed(engine: Engine) -> None:
    for seed in range(4):
        said = json.loads(run(engine, schema_input(temperature=1.0), seed=seed).text)
        assert set(said) == {"sky", "boats"}
    form = {"type": "tool_calls", "tool_calls": CALLS}
    text = run(engine, {"prompt": SAID, "max_tokens": 60, "temperature": 0, "response_format": form}).text
    begun, _, rest = text.partition("<call>")
    assert "{" not in begun and json.loads(rest.partition("</call>")[0])["sky"] in ("clear", "gray")


@pytest.mark.parametrize("begin", ["<call>", ""])
@pytest.mark.parametrize("otherwise", [None, {"const": "none"}], ids=["text", "otherwise"])
def test_calls_of_every_shape_are_compiled(engine: Engine, begin: str, otherwise: Any) -> None:
    calls = {**CALLS, "begin": begin, "end": "</call>" if begin else ""}
    if otherwise is not None:
        calls["otherwise"] = otherwise
    form = {"type": "tool_calls", "tool_calls": calls}
    text = run(engine, {"prompt": SAID, "max_tokens": 60, "temperature": 0, "response_format": form}).text
    if otherwise is not None:
        assert text == '"none"' or text.lstrip().startswith(begin or "{")
    elif not begin and text.startswith("{"):
        assert json.loads(text)


def test_what_vllm_refuses_is_bad_input_with_its_words(engine: Engine) -> None:
    for fields, words in (
        ({"temperature": 3}, "temperature"),
        ({"response_format": {"type": "regex", "regex": "[a-"}}, "regex"),
        ({"prompt": "x " * 3000}, "the prompt has"),
        ({"bad_token_ids": list(range(200))}, "`bad_token_ids`"),
        ({"min_tokens": 9, "response_format": {"type": "regex", "regex": "[a-c]{3}"}}, "`min_tokens`"),
    ):
        with pytest.raises(BadInput, match=words):
            run(engine, {"prompt": "x", "max_tokens": 20, "temperature": 0, **fields})
