"""Tells in which of six languages a text is, with onnxruntime: a model in Python.

    pip install nsbridge onnx onnxruntime
    python export.py ../../models/six-languages /tmp/six-languages
    nsbridge worker --python model.py --model languages --weights target=/tmp/six-languages ..
"""

import json
from dataclasses import dataclass
from typing import Optional

import onnxruntime
from features import grams
from nsbridge_handler import BadInput


@dataclass
class Input:
    text: str
    # What a gateway asks for; the scores are those of all languages.
    question: Optional[str] = None
    labels: Optional[list] = None


class Model:
    def load(self, models):
        folder = models["target"]
        self.labels = json.loads((folder / "config.json").read_text())["labels"]
        self.session = onnxruntime.InferenceSession(folder / "model.onnx")
        self.buckets = self.session.get_inputs()[0].shape[1]

    def handle(self, input: Input):
        row = grams(input.text, self.buckets)
        if row is None:
            raise BadInput("`text` has no letters, so there is no language to be told")
        [scores] = self.session.run(None, {"features": row[None]})
        return dict(zip(self.labels, map(float, scores[0])))
