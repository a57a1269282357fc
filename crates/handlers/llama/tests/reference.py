"""Logits of tiny Llama models, by an independent implementation in numpy and f64.

    python3 tests/reference.py > tests/reference.json

The weights are not stored: both sides draw them from Knuth's MMIX generator,
x <- 6364136223846793005 x + 1442695040888963407 (mod 2^64), starting from the case's seed,
value = (x >> 40) / 2^23 - 1 in [-1, 1), which f32 holds exactly. Tensors are drawn in the order
of `shapes`, row by row; a norm's weight is 1 + value / 4, a matrix's is value / 4.
"""

import json

import numpy as np

CASES = [
    # Grouped-query heads, explicit head_dim, tied output, config of transformers 4.
    dict(seed=11, hidden_size=64, intermediate_size=96, vocab_size=48, num_hidden_layers=2,
         num_attention_heads=4, num_key_value_heads=2, head_dim=24, rms_norm_eps=1e-5,
         max_position_embeddings=64, tie_word_embeddings=True, rope_theta=10000.0,
         rope_scaling=None, torch_dtype="bfloat16"),
    # One key-value head per head, separate output, scaled positions, config of transformers 5.
    dict(seed=12, hidden_size=48, intermediate_size=64, vocab_size=40, num_hidden_layers=3,
         num_attention_heads=3, num_key_value_heads=3, head_dim=16, rms_norm_eps=1e-6,
         max_position_embeddings=96, tie_word_embeddings=False, dtype="float32",
         rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0,
                              low_freq_factor=1.0, high_freq_factor=4.0,
                              original_max_position_embeddings=32)),
]


def shapes(c):
    h, f, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, k = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    yield "model.embed_tokens.weight", (c["vocab_size"], h)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", (h,)
        for name, rows in (("q", q), ("k", k), ("v", k)):
            yield p + f"self_attn.{name}_proj.weight", (rows, h)
        yield p + "self_attn.o_proj.weight", (h, q)
        yield p + "post_attention_layernorm.weight", (h,)
        yield p + "mlp.gate_proj.weight", (f, h)
        yield p + "mlp.up_proj.weight", (f, h)
        yield p + "mlp.down_proj.weight", (h, f)
    yield "model.norm.weight", (h,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], h)


def draw(c):
    x = c["seed"]
    weights = {}
    for name, shape in shapes(c):
        values = []
        for _ in range(int(np.prod(shape))):
            x = (6364136223846793005 * x + 1442695040888963407) % 2**64
            values.append(((x >> 40) / 2**23 - 1) / 4 + (len(shape) == 1))
        weights[name] = np.array(values, dtype=np.float64).reshape(shape)
    return weights


def inverse_frequencies(c):
    rope = c.get("rope_parameters") or {}
    theta = rope.get("rope_theta", c.get("rope_theta"))
    inverse = theta ** -(np.arange(0, c["head_dim"], 2) / c["head_dim"])
    if rope.get("rope_type") == "llama3":
        wavelength = 2 * np.pi / inverse
        original = rope["original_max_position_embeddings"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = (original / wavelength - low) / (high - low)
        between = (1 - smooth) * inverse / rope["factor"] + smooth * inverse
        scaled = np.where(wavelength > original / low, inverse / rope["factor"], between)
        inverse = np.where(wavelength < original / high, inverse, scaled)
    return inverse


def forward(c, w, tokens):
    """Returns the logits after every token: [len(tokens), vocab_size]."""
    n, d = len(tokens), c["head_dim"]
    heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
    angles = np.outer(np.arange(n), inverse_frequencies(c))
    cos, sin = np.cos(angles), np.sin(angles)

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + c["rms_norm_eps"]) * scale

    def rotate(x):
        a, b = x[:, : d // 2], x[:, d // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        y = norm(x, w[p + "input_layernorm.weight"])
        q, k, v = (y @ w[p + f"self_attn.{name}_proj.weight"].T for name in "qkv")
        out = []
        for head in range(heads):
            group = head * groups // heads
            qh = rotate(q[:, head * d : (head + 1) * d])
            kh = rotate(k[:, group * d : (group + 1) * d])
            scores = qh @ kh.T / np.sqrt(d)
            scores[np.triu_indices(n, 1)] = -np.inf
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            out.append(shares @ v[:, group * d : (group + 1) * d])
        x = x + np.concatenate(out, -1) @ w[p + "self_attn.o_proj.weight"].T
        y = norm(x, w[p + "post_attention_layernorm.weight"])
        gate = y @ w[p + "mlp.gate_proj.weight"].T
        gate = gate / (1 + np.exp(-gate)) * (y @ w[p + "mlp.up_proj.weight"].T)
        x = x + gate @ w[p + "mlp.down_proj.weight"].T
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, w["model.norm.weight"]) @ output.T


def case(c):
    tokens = [(7 * i * i + 3 * i + 5) % c["vocab_size"] for i in range(60)]
    logits = forward(c, draw(c), tokens)
    seed = c.pop("seed")
    config = dict(c, architectures=["LlamaForCausalLM"], hidden_act="silu", eos_token_id=2)
    at = {str(n): [round(v, 7) for v in logits[n - 1]] for n in (1, 20, 60)}
    return dict(config=config, seed=seed, tokens=tokens, logits=at)


print(json.dumps([case(c) for c in CASES], indent=1))
