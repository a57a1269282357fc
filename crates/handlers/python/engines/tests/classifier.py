"""Texts, and a classifier made of SmolLM2 with random weights for its categories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEXTS = ["The sea is calm.", "A bear lives in the wood.", "東京は", "The sea is quiet."]
LABELS = ["calm", "rough", "frozen"]
OPTIONS: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 8, "enforce_eager": True, "dtype": "float32"}


def write_classifier(source: str, folder: Path) -> tuple[Any, Any]:
    """Writes the classifier. Returns it and its tokenizer."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(5)
    named = {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
    classes: Any = AutoModelForSequenceClassification
    model = classes.from_pretrained(source, num_labels=3, dtype=torch.float32, **named)
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    model.config.pad_token_id = tokenizer.pad_token_id or 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer
