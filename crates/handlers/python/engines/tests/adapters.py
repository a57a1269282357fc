"""LoRA adapters in PEFT's format, with random matrices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
import safetensors.torch


def write_adapter(folder: Path, model: Path, seed: int, rank: int = 12) -> Path:
    """Writes an adapter of the query and value projections of a Llama."""
    shape = json.loads((model / "config.json").read_text())
    hidden, head = shape["hidden_size"], shape["hidden_size"] // shape["num_attention_heads"]
    outputs = {"q_proj": hidden, "v_proj": head * shape["num_key_value_heads"]}
    noise = torch.Generator().manual_seed(seed)
    tensors = dict[str, torch.Tensor]()
    for layer in range(shape["num_hidden_layers"]):
        for name, size in outputs.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(rank, hidden, generator=noise) / 16
            tensors[f"{at}.lora_B.weight"] = torch.randn(size, rank, generator=noise) / 16
    folder.mkdir()
    cast(Any, safetensors.torch).save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(outputs),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
