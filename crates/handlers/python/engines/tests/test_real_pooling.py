"""Vectors and scores of a real vLLM, with the model that `NSBRIDGE_TEST_VLLM_MODEL` names."""

from __future__ import annotations

import asyncio
import base64
import math
import os
import struct
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("vllm", exc_type=ImportError)
MODEL = os.environ.get("NSBRIDGE_TEST_VLLM_MODEL", "")
if not MODEL:
    pytest.skip("NSBRIDGE_TEST_VLLM_MODEL names no model", allow_module_level=True)

import torch
from nsbridge_handler import BadInput
from vllm import LLM, PoolingParams

from classifier import LABELS, OPTIONS, TEXTS, write_classifier
from job import Collector
from vllm_pooling import Embedder, Judge

T = TypeVar("T")
LOOP = asyncio.new_event_loop()


def wait(work: Coroutine[Any, Any, T]) -> T:
    return LOOP.run_until_complete(work)


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    embedder = Embedder()
    wait(embedder.load({"target": Path(MODEL)}, OPTIONS))
    yield embedder
    embedder.close()


def run(engine: Any, input: dict[str, Any], **fields: Any) -> Collector:
    job = Collector(**fields)
    wait(engine.handle(input, job))
    return job


def test_vectors_are_those_of_vllm(embedder: Embedder) -> None:
    vllm: Any = LLM(MODEL, runner="pooling", convert="embed", **OPTIONS)
    outputs = vllm.encode(TEXTS, PoolingParams(task="embed"), pooling_task="embed", use_tqdm=False)
    job = run(embedder, {"input": TEXTS})
    assert [piece["index"] for piece in job.all] == [0, 1, 2, 3]
    for piece, output in zip(job.all, outputs, strict=True):
        assert piece["embedding"] == pytest.approx(output.outputs.data.tolist(), abs=1e-5)
        assert math.hypot(*piece["embedding"]) == pytest.approx(1, abs=1e-4)
    assert job.usage.get("input_tokens") == sum(len(output.prompt_token_ids) for output in outputs)
    calm, bear, _, quiet = (piece["embedding"] for piece in job.all)
    near, far = (sum(a * b for a, b in zip(calm, other)) for other in (quiet, bear))
    assert near > far


def test_token_ids_are_texts_and_encodings_are_alike(embedder: Embedder) -> None:
    tokens = wait(embedder.tokens(TEXTS[0]))
    by_text, by_ids = (run(embedder, {"input": [one]}).all[0]["embedding"] for one in (TEXTS[0], tokens))
    encoded = run(embedder, {"input": [TEXTS[0]], "encoding_format": "base64"}).all[0]["embedding"]
    assert by_text == by_ids
    assert list(struct.unpack(f"<{len(by_text)}f", base64.b64decode(encoded))) == pytest.approx(by_text)
    few = run(embedder, {"input": [TEXTS[0]], "dimensions": 64}).all[0]["embedding"]
    assert len(few) == 64 and math.hypot(*few) == pytest.approx(1, abs=1e-4)
    assert [each / few[0] for each in few] == pytest.approx([each / by_text[0] for each in by_text[:64]])


def test_a_later_attempt_makes_only_the_vectors_that_are_missing(embedder: Embedder) -> None:
    whole = run(embedder, {"input": TEXTS})
    later = run(embedder, {"input": TEXTS}, before=whole.all[:3], attempt=2)
    assert [piece["index"] for piece in later.pieces] == [3]
    assert later.all[3]["embedding"] == pytest.approx(whole.all[3]["embedding"], abs=1e-5)
    assert later.usage.get("input_tokens") == whole.usage.get("input_tokens")


def test_a_text_beyond_the_context_is_refused_by_its_place(embedder: Embedder) -> None:
    with pytest.raises(BadInput, match=r"`input\[1\]` has \d+ tokens, and 1 to 512 are possible"):
        run(embedder, {"input": ["x", "sea " * 600]})


def test_scores_are_those_of_transformers(tmp_path: Path) -> None:
    model, tokenizer = write_classifier(MODEL, tmp_path)
    judge = Judge()
    wait(judge.load({"target": tmp_path}, OPTIONS))
    try:
        for text in TEXTS:
            with torch.no_grad():
                logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
            expected = dict(zip(LABELS, logits.softmax(-1).tolist()))
            [scores] = run(judge, {"text": text}).all
            assert scores == pytest.approx(expected, abs=1e-3)
            few = run(judge, {"text": text, "labels": [{"label": "rough"}]}).all
            assert few == [{"rough": scores["rough"]}]
        with pytest.raises(BadInput, match="`labels` must be among the model's categories: calm, rough, frozen"):
            run(judge, {"text": "x", "labels": [{"label": "dry"}]})
    finally:
        judge.close()
