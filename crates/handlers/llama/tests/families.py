"""Logits of tiny models of every family, computed by Hugging Face's own classes.

    python3 tests/families.py > tests/families.json

Needs torch and transformers 5 (written with torch 2.15.0 and transformers 5.23.0).

The weights are not stored: both sides draw them from Knuth's MMIX generator, as `reference.py`
describes, in the order of `tensors`. With value = (x >> 40) / 2^23 - 1, a norm's weight is
1 + value / 4, anything else (biases too) is value * scale in f32. `scale` is the initializer's
range times the square root of 3, so that the standard deviation is that range.

The reference is torch in f32. `torch_error` is its maximum difference from torch in f64 over all
positions. The tolerance of a case at range 0.02 is 1e-4, that of one at 0.2 is four times
`torch_error`.

Each case also has `mutants`: changes of its config that stand for plausible bugs. This program
checks that each mutant changes a logit by more than ten times the tolerance.
"""

import copy
import json
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM), "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SIZE = dict(hidden_size=64, intermediate_size=96, vocab_size=67, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
            rms_norm_eps=1e-5, tie_word_embeddings=False)


def rope(rope_type="default", rope_theta=10_000.0, **rest):
    return dict(rope_type=rope_type, rope_theta=rope_theta, **rest)


LLAMA3 = rope("llama3", 500_000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = rope("yarn", 10_000.0, factor=4.0, original_max_position_embeddings=48, beta_fast=16.0)
MSCALE = rope("yarn", 10_000.0, factor=8.0, original_max_position_embeddings=32, mscale=1.0,
              mscale_all_dim=0.5, truncate=False)

# Name, family, differences from SIZE, and mutants in addition to a wrong theta and a wrong eps.
CASES = [
    ("llama 2", "llama", dict(num_key_value_heads=4, rope_parameters=rope()), {}),
    ("llama 3", "llama", dict(tie_word_embeddings=True, rope_parameters=LLAMA3),
     {"no scaling": dict(rope_parameters=rope(rope_theta=500_000.0)),
      "wrong factor": dict(rope_parameters=dict(LLAMA3, factor=2.0))}),
    ("llama with biases", "llama",
     dict(attention_bias=True, mlp_bias=True, hidden_size=80, head_dim=24,
          rope_parameters=rope()), {}),
    ("linear positions", "llama", dict(rope_parameters=rope("linear", factor=4.0)),
     {"no scaling": dict(rope_parameters=rope())}),
    ("yarn", "llama", dict(rope_parameters=YARN),
     {"no scaling": dict(rope_parameters=rope()),
      "no attention factor": dict(rope_parameters=dict(YARN, attention_factor=1.0))}),
    ("yarn with mscale", "llama", dict(rope_parameters=MSCALE),
     {"no scaling": dict(rope_parameters=rope()),
      "truncated": dict(rope_parameters=dict(MSCALE, truncate=True))}),
    ("mistral", "mistral", dict(sliding_window=24, rope_parameters=rope()),
     {"no window": dict(sliding_window=None), "window of one more": dict(sliding_window=25),
      "window of one less": dict(sliding_window=23)}),
    ("qwen 2", "qwen2", dict(use_sliding_window=True, sliding_window=20, max_window_layers=1,
                             num_hidden_layers=3, rms_norm_eps=1e-6,
                             rope_parameters=rope(rope_theta=1_000_000.0)),
     {"no window": dict(use_sliding_window=False),
      "a window on every layer": dict(max_window_layers=0),
      "window of one more": dict(sliding_window=21)}),
    ("qwen 3", "qwen3", dict(head_dim=32, tie_word_embeddings=True,
                             rope_parameters=rope(rope_theta=1_000_000.0)), {}),
    ("qwen 3 with layer types", "qwen3",
     dict(head_dim=16, attention_bias=True, use_sliding_window=True, sliding_window=20,
          layer_types=["sliding_attention", "full_attention"], rope_parameters=rope()),
     {"no window": dict(layer_types=["full_attention", "full_attention"]),
      "the other layer": dict(layer_types=["full_attention", "sliding_attention"])}),
]
TOKENS = 160
AFTER = (1, 31, 91, TOKENS)


def tensors(config, family):
    """Yields names and shapes in the order in which the weights are drawn."""
    h, f, v = config.hidden_size, config.intermediate_size, config.vocab_size
    d = getattr(config, "head_dim", None) or h // config.num_attention_heads
    q, k = config.num_attention_heads * d, config.num_key_value_heads * d
    output_bias = getattr(config, "attention_bias", False)
    qkv_bias = output_bias or family == "qwen2"
    mlp_bias = getattr(config, "mlp_bias", False)

    def linear(name, rows, columns, bias):
        yield name + ".weight", (rows, columns)
        if bias:
            yield name + ".bias", (rows,)

    yield "model.embed_tokens.weight", (v, h)
    for layer in range(config.num_hidden_layers):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", (h,)
        yield from linear(p + "self_attn.q_proj", q, h, qkv_bias)
        yield from linear(p + "self_attn.k_proj", k, h, qkv_bias)
        yield from linear(p + "self_attn.v_proj", k, h, qkv_bias)
        if family == "qwen3":
            yield p + "self_attn.q_norm.weight", (d,)
            yield p + "self_attn.k_norm.weight", (d,)
        yield from linear(p + "self_attn.o_proj", h, q, output_bias)
        yield p + "post_attention_layernorm.weight", (h,)
        yield from linear(p + "mlp.gate_proj", f, h, mlp_bias)
        yield from linear(p + "mlp.up_proj", f, h, mlp_bias)
        yield from linear(p + "mlp.down_proj", h, f, mlp_bias)
    yield "model.norm.weight", (h,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (v, h)


class Mmix:
    def __init__(self, seed):
        self.x = seed

    def next(self):
        self.x = (6364136223846793005 * self.x + 1442695040888963407) % 2**64
        return self.x

    def values(self, n):
        return torch.tensor([(self.next() >> 40) / 2**23 - 1 for _ in range(n)])


def draw(config, family, seed, scale):
    mmix = Mmix(seed)
    weights = {}
    for name, shape in tensors(config, family):
        values = mmix.values(torch.Size(shape).numel())
        drawn = 1 + values / 4 if name.endswith("norm.weight") else values * scale
        weights[name] = drawn.reshape(shape)
    return weights


def build(config, family, weights, dtype):
    config._attn_implementation = "eager"
    model = CLASSES[family][1](config).eval()
    if config.tie_word_embeddings:
        weights = dict(weights, **{"lm_head.weight": weights["model.embed_tokens.weight"]})
    model.load_state_dict(weights, strict=True)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model = model.to(dtype)
    model.model.rotary_emb.inv_freq = frequencies
    return model


def run(config, family, weights, tokens, dtype=torch.float32):
    """Returns the model, its logits after every token, and how many positions the last token sees.

    transformers casts to f32 inside RMSNorm and softmax, whatever the model's dtype is. A run in
    f64 therefore replaces f32. Frequencies and angles stay in f32, because they define the model.
    """
    weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
    model = build(config, family, weights, dtype)
    with torch.no_grad(), mock.patch.object(torch, "float32", dtype):
        out = model(torch.tensor([tokens]), use_cache=False, output_attentions=True)
    assert out.logits.dtype == dtype
    seen = [int((layer[0, 0, -1] > 0).sum()) for layer in out.attentions]
    return model, out.logits[0], seen


def configure(family, fields, **others):
    fields = dict(copy.deepcopy(fields), bos_token_id=1, eos_token_id=2, **others)
    return CLASSES[family][0](**fields)


def written(config, family, transformers):
    """Returns `config.json` as this transformers writes it; early versions 4 lack `layer_types`."""
    config.architectures = [CLASSES[family][1].__name__]
    config.dtype = "float32"
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        written = json.loads((Path(directory) / "config.json").read_text())
    if transformers == 5:
        return written
    rope = written.pop("rope_parameters")
    written["torch_dtype"] = written.pop("dtype")
    written["transformers_version"] = "4.46.3"
    written["rope_theta"] = rope.pop("rope_theta")
    written["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    if "max_window_layers" in written:
        layers, first = written["num_hidden_layers"], written["max_window_layers"]
        slides = [written["use_sliding_window"] and layer >= first for layer in range(layers)]
        if written["layer_types"] == [("full", "sliding")[s] + "_attention" for s in slides]:
            del written["layer_types"]
    return written


def mutants(fields, extra):
    rope = fields["rope_parameters"]
    yield "wrong theta", dict(rope_parameters=dict(rope, rope_theta=rope["rope_theta"] / 100))
    yield "wrong eps", dict(rms_norm_eps=fields["rms_norm_eps"] * 10)
    yield from extra.items()


def case(index, deviation):
    title, family, fields, extra = CASES[index]
    fields, narrow = dict(SIZE, **fields), deviation < 0.1
    seed, scale = 1000 + 2 * index + narrow, torch.tensor(deviation * 3**0.5)
    transformers = 4 + (index + narrow) % 2
    mmix = Mmix(seed + 500)
    tokens = [(mmix.next() >> 40) % fields["vocab_size"] for _ in range(TOKENS)]

    config = configure(family, fields, initializer_range=deviation)
    weights = draw(config, family, seed, scale)
    model, logits, seen = run(config, family, weights, tokens)
    exact = run(config, family, weights, tokens, torch.float64)[1]
    torch_error = (logits.double() - exact).abs().max().item()
    tolerance = 1e-4 if narrow else 4 * torch_error
    at = [n - 1 for n in AFTER]
    spread = min((row.max() - row.min()).item() for row in logits[at])
    assert spread > 0.1 and tolerance < 2e-4, (title, spread, tolerance)

    json_config, changes = written(config, family, transformers), {}
    for name, change in mutants(fields, extra):
        changed = configure(family, dict(fields, **change), initializer_range=deviation)
        moved = (run(changed, family, weights, tokens)[1] - logits)[at].abs().max().item()
        print(f"{title}, {deviation}: {name} moves {moved / tolerance:.0f}x", file=sys.stderr)
        assert moved > 10 * tolerance, (title, name, moved, tolerance)
        other = written(changed, family, transformers)
        fields_of_both = json_config.keys() | other.keys()
        changes[name] = {field: other.get(field) for field in sorted(fields_of_both)
                         if other.get(field) != json_config.get(field)}

    rope = model.model.rotary_emb
    return dict(
        name=f"{title}, {deviation}, transformers {transformers}", config=json_config, seed=seed,
        scale=scale.item(), tokens=tokens, tolerance=tolerance, torch_error=torch_error,
        windows=[n if n < TOKENS else None for n in seen], frequencies=rope.inv_freq.tolist(),
        attention_scaling=rope.attention_scaling, mutants=changes,
        logits={str(n): [round(v, 7) for v in logits[n - 1].tolist()] for n in AFTER})


torch.set_num_threads(1)
cases = [case(index, deviation) for index in range(len(CASES)) for deviation in (0.02, 0.2)]
print("[")
print(",\n".join(json.dumps(case) for case in cases))
print("]")
