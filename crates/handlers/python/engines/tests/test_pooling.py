"""Answers of vectors and scores, with numbers that were recorded from a real vLLM."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import struct
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from nsbridge_handler import BadInput

from engine_pooling import embed, judge
from job import Collector

RECORD = json.loads(Path(__file__).with_name("recorded_pooling.json").read_text())
ROWS: list[dict[str, Any]] = RECORD["rows"]
TEXTS = [row["text"] for row in ROWS]
SIZE = len(ROWS[0]["vector"])


class Recorded:
    """Model whose every number was recorded. It fails at a text that the real one was not asked for."""

    context: int = RECORD["context"]

    def __init__(self, field: str) -> None:
        self._field = field
        self.asked: list[str] = []
        self.canceled = 0

    async def tokens(self, text: str) -> list[int]:
        found: list[int] = next((row["tokens"] for row in ROWS if row["text"] == text), [1] * len(text))
        return found

    async def numbers(self, id: str, tokens: Sequence[int], scope: str) -> list[float]:
        [row] = [row for row in ROWS if row["tokens"] == list(tokens)]
        self.asked.append(id)
        try:
            # Later texts are done first, as an engine may do it.
            await asyncio.sleep(0.02 / (1 + ROWS.index(row)))
        except asyncio.CancelledError:
            self.canceled += 1
            raise
        numbers: list[float] = row[self._field]
        return numbers


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def vectors(input: dict[str, Any], **fields: Any) -> Collector:
    job = Collector(**fields)
    run(embed(Recorded("vector"), SIZE, input, job))
    return job


def test_each_text_has_its_vector_in_the_order_of_the_texts() -> None:
    job = vectors({"input": TEXTS})
    assert job.all == [{"index": place, "embedding": row["vector"]} for place, row in enumerate(ROWS)]
    assert job.usage.get("input_tokens") == sum(len(row["tokens"]) for row in ROWS)
    by_ids = vectors({"input": [row["tokens"] for row in ROWS]})
    assert by_ids.all == job.all


def test_a_later_attempt_asks_only_for_what_is_missing() -> None:
    whole, model = vectors({"input": TEXTS}), Recorded("vector")
    job = Collector(before=whole.all[:3], attempt=2)
    run(embed(model, SIZE, {"input": TEXTS}, job))
    assert job.all == whole.all
    assert model.asked == [f"{job.id}-2-3"]


def test_vectors_are_cut_to_the_length_that_they_had_and_encoded() -> None:
    [piece] = vectors({"input": TEXTS[:1], "dimensions": 8, "encoding_format": "base64"}).all
    cut = struct.unpack("<8f", base64.b64decode(piece["embedding"]))
    whole = ROWS[0]["vector"]
    assert math.hypot(*cut) == pytest.approx(math.hypot(*whole), abs=1e-5)
    assert [each / cut[0] for each in cut] == pytest.approx([each / whole[0] for each in whole[:8]], abs=1e-4)


@pytest.mark.parametrize(
    ("input", "told"),
    [
        ({"input": []}, "`input` has no text"),
        ({"input": [TEXTS[0], "x" * 600]}, r"`input\[1\]` has 600 tokens, and 1 to 512 are possible"),
        ({"input": [[]]}, r"`input\[0\]` has 0 tokens"),
        ({"input": TEXTS, "dimensions": SIZE + 1}, f"`dimensions` must be from 1 to {SIZE}"),
        ({"input": TEXTS, "dimensions": 0}, f"`dimensions` must be from 1 to {SIZE}"),
    ],
)
def test_what_cannot_be_is_refused_before_the_model_is_asked(input: dict[str, Any], told: str) -> None:
    model = Recorded("vector")
    with pytest.raises(BadInput, match=told):
        run(embed(model, SIZE, input, Collector()))
    assert model.asked == []


def test_large_vectors_must_be_encoded() -> None:
    with pytest.raises(BadInput, match="`encoding_format` must be base64 for more than 2730 dimensions"):
        run(embed(Recorded("vector"), 4096, {"input": TEXTS}, Collector()))


def test_a_canceled_request_leaves_no_call_behind() -> None:
    model = Recorded("vector")

    async def canceled() -> None:
        call = asyncio.ensure_future(embed(model, SIZE, {"input": TEXTS}, Collector()))
        while len(model.asked) < len(TEXTS):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    run(canceled())
    assert model.canceled == len(TEXTS)


def test_a_classifier_tells_its_categories_or_those_that_are_wanted() -> None:
    model, labels = Recorded("scores"), RECORD["labels"]
    for row in ROWS:
        scores = dict(zip(labels, row["scores"]))
        job = Collector()
        run(judge(model, labels, {"text": row["text"]}, job))
        assert job.all == [scores]
        assert job.usage.get("input_tokens") == len(row["tokens"])
        job = Collector()
        run(judge(model, labels, {"text": row["text"], "labels": [{"label": labels[1]}]}, job))
        assert job.all == [{labels[1]: scores[labels[1]]}]
    later = Collector(before=[{"calm": 0.5}], attempt=2)
    run(judge(Recorded("none"), labels, {"text": TEXTS[0]}, later))
    assert later.all == [{"calm": 0.5}]
    for input, told in (
        ({"labels": [{"label": "dry"}]}, "`labels` must be among the model's categories: calm, rough, frozen"),
        ({"question": "Is it calm?"}, "`question` is not possible"),
    ):
        with pytest.raises(BadInput, match=told):
            run(judge(model, labels, {"text": TEXTS[0], **input}, Collector()))
