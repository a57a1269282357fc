"""Small Llama in plain PyTorch, with a reader and a writer for the Hugging Face folder layout.

The module names are those of Hugging Face's LlamaForCausalLM, so the keys of state_dict() are the
tensor names that other programs expect. This file needs neither `transformers` nor `safetensors`
and works with PyTorch 1.13 and later: the check in CI installs the PyTorch of the Linux
distribution, which is old but small.
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    head_dim: int = 32
    vocab: int = 4096
    max_positions: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


# Shapes of the bundled models: a target, and drafts an eighth of its size.
TARGET = Shape(hidden=256, layers=8, heads=8, kv_heads=4, ffn=768)
DRAFT = Shape(hidden=128, layers=2, heads=4, kv_heads=2, ffn=384)


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        # Computed in f32 under any autocast type: a mean of squares loses too much in bf16.
        x32 = x.float()
        return x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rope_tables(shape, length, device=None):
    """Returns cos and sin of the rotation angles, each [length, head_dim]."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=device) / shape.head_dim
    angles = torch.outer(
        torch.arange(length, dtype=torch.float32, device=device), shape.rope_theta**-half
    )
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    """Applies rotary embedding in Hugging Face's convention: i pairs with i + head_dim/2."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def causal_attention(q, k, v):
    """Computes attention; the queries are the last q.size(-2) positions of the keys.

    q is [batch, heads, new, head_dim]. k and v have the key-value heads; each of these serves
    heads / key-value heads of q.
    """
    batch, heads, new, size = q.shape
    groups, total = heads // k.size(1), k.size(-2)
    if new == total and hasattr(F, "scaled_dot_product_attention"):
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    # The queries of a group are stacked, so that no key is repeated: with a long cache, repeating
    # would take longer than the rest of a step.
    stacked = q.reshape(batch, k.size(1), groups * new, size)
    scores = stacked @ k.transpose(-1, -2) / math.sqrt(size)
    hidden = torch.ones(new, total, dtype=torch.bool, device=q.device).triu(total - new + 1)
    scores = scores.masked_fill(hidden.repeat(groups, 1), float("-inf"))
    return (scores.softmax(dim=-1).to(v.dtype) @ v).view(batch, heads, new, size)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x, cos, sin, past):
        batch, length, _ = x.shape

        def split(y, heads):
            return y.view(batch, length, heads, self.shape.head_dim).transpose(1, 2)

        q = split(self.q_proj(x), self.shape.heads)
        k = split(self.k_proj(x), self.shape.kv_heads)
        v = split(self.v_proj(x), self.shape.kv_heads)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        out = causal_attention(q, k, v)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1)), (k, v)


class MLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x, cos, sin, past):
        mixed, present = self.self_attn(self.input_layernorm(x), cos, sin, past)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), present


class Backbone(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.model = Backbone(shape)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # Scaled by the width. The usual 0.02 leaves attention nearly flat at this size, so
                # that it learns slowly at first. The layers that write into the residual stream
                # start smaller, so that its variance does not grow with the depth.
                std = weight.size(1) ** -0.5
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    std /= math.sqrt(2 * shape.layers)
                nn.init.normal_(weight, std=0.05 if "embed" in name else std)

    def states(self, ids, past=None):
        """Returns the last states for `ids` [batch, length], and the updated key-value cache."""
        start = 0 if past is None else past[0][0].size(2)
        if start + ids.size(1) > self.shape.max_positions:
            raise ValueError(f"more than {self.shape.max_positions} positions")
        cos, sin = rope_tables(self.shape, start + ids.size(1), ids.device)
        cos, sin = cos[start:], sin[start:]
        x = self.model.embed_tokens(ids)
        present = []
        for index, layer in enumerate(self.model.layers):
            x, kv = layer(x, cos, sin, None if past is None else past[index])
            present.append(kv)
        return self.model.norm(x), present

    def logits(self, states):
        """Returns logits [.., vocabulary] for last states [.., hidden]."""
        return F.linear(states, self.model.embed_tokens.weight)

    def forward(self, ids, past=None):
        """Returns the logits for `ids` [batch, length], and the updated key-value cache."""
        states, present = self.states(ids, past)
        return self.logits(states), present

    def parameter_count(self):
        return sum(p.numel() for p in self.parameters())


def config_json(shape, special):
    """Returns the content of config.json; `special` maps names of special tokens to their ids."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": shape.max_positions,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "bos_token_id": special["<|begin_of_text|>"],
        "eos_token_id": [special["<|end_of_text|>"], special["<|eot_id|>"]],
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def shape_of(config):
    """Returns the Shape that a config.json describes."""
    return Shape(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        ffn=config["intermediate_size"],
        head_dim=config["head_dim"],
        vocab=config["vocab_size"],
        max_positions=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
    )


def replace_file(path, data):
    """Writes beside `path` and renames, so that a reader never sees half a file."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)


def save_weights(model, path):
    """Writes model.safetensors in bf16: a length, a JSON table of contents, the raw numbers."""
    table, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, weight in model.state_dict().items():
        data = weight.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
        table[name] = {
            "dtype": "BF16",
            "shape": list(weight.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        blobs.append(data)
        offset += len(data)
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the format aligns the numbers to 8 bytes
    replace_file(path, struct.pack("<Q", len(header)) + header + b"".join(blobs))


def load_weights(model, path):
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    table = json.loads(raw[8 : 8 + length])
    table.pop("__metadata__", None)
    state = {}
    for name, entry in table.items():
        if entry["dtype"] != "BF16":
            raise ValueError(f"{path}: {name} is {entry['dtype']}, and only BF16 is read here")
        begin, end = entry["data_offsets"]
        data = bytearray(raw[8 + length + begin : 8 + length + end])
        numbers = torch.frombuffer(data, dtype=torch.int16).view(torch.bfloat16)
        state[name] = numbers.view(entry["shape"]).float()
    model.load_state_dict(state)


def load_model(folder):
    """Loads the model in `folder`, in f32 and in evaluation mode."""
    folder = Path(folder)
    model = Llama(shape_of(json.loads((folder / "config.json").read_text())))
    load_weights(model, folder / "model.safetensors")
    return model.eval()
