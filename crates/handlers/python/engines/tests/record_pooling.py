"""Records the vectors and scores of a real vLLM: `python record_pooling.py FOLDER_OF_SMOLLM2`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from classifier import LABELS, OPTIONS, TEXTS, write_classifier
from vllm_pooling import Embedder, Judge

FILE = Path(__file__).with_name("recorded_pooling.json")


async def record(source: str) -> None:
    """Records tokens, vectors and scores of each text."""
    embedder, judge, rows = Embedder(), Judge(), list[Any]()
    await embedder.load({"target": Path(source)}, OPTIONS)
    for text in TEXTS:
        tokens = await embedder.tokens(text)
        vector = await embedder.numbers(text, tokens, "")
        rows.append({"text": text, "tokens": tokens, "vector": [round(each, 5) for each in vector]})
    embedder.close()
    with TemporaryDirectory() as folder:
        write_classifier(source, Path(folder))
        await judge.load({"target": Path(folder)}, OPTIONS)
        for row in rows:
            row["scores"] = [round(each, 5) for each in await judge.numbers(row["text"], row["tokens"], "")]
        judge.close()
    FILE.write_text(json.dumps({"labels": LABELS, "context": OPTIONS["max_model_len"], "rows": rows}) + "\n")


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1]))
