"""Logits of GGUF files, computed by llama.cpp.

    python3 tests/by_llama_cpp.py target/release/nsbridge > tests/by_llama_cpp.json

Needs llama-cpp-python (written with 0.3.36, built without AMX). `nsbridge model quantize` makes the
files, from the model pair and from random shapes whose weights are drawn as `families.py`
describes. Their SHA-256 is stored beside the logits, so that the test reads the same bytes.

llama.cpp keeps keys and values in f32 here. `mixed` has the type that llama.cpp gives each tensor
of the target when it quantizes the same file in f16 itself. `errors` has the errors of llama.cpp's
own blocks for matrices of the target. Logits are kept for every token id, or for one of every
`every` ids if the vocabulary is large.
"""

import ctypes
import hashlib
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import llama_cpp as c
import numpy as np

MODELS = Path(__file__).parents[4] / "examples/models"
SIZE = dict(hidden_act="silu", hidden_size=256, intermediate_size=512, vocab_size=70,
            num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=1, head_dim=32,
            rms_norm_eps=1e-5, rope_theta=10_000.0, max_position_embeddings=128,
            tie_word_embeddings=False, eos_token_id=3)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
# Random shapes: name and configuration.
RANDOM = [
    ("llama 3", dict(SIZE, architectures=["LlamaForCausalLM"], rope_theta=500.0,
                     rope_scaling=LLAMA3)),
    ("qwen 2", dict(SIZE, architectures=["Qwen2ForCausalLM"], num_key_value_heads=2)),
    ("qwen 3", dict(SIZE, architectures=["Qwen3ForCausalLM"], num_key_value_heads=4)),
]
MIXES = ["f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m"]
SEED, SCALE, TOKENS, AT = 5, 0.1, 24, (1, 12, 24)
TYPES = {0: "F32", 1: "F16", 8: "Q8_0", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 30: "BF16"}


def shapes(g):
    h, f, d = g["hidden_size"], g["intermediate_size"], g["head_dim"]
    q, k = g["num_attention_heads"] * d, g["num_key_value_heads"] * d
    family = g["architectures"][0]
    yield "model.embed_tokens.weight", (g["vocab_size"], h)
    for layer in range(g["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", (h,)
        for name, rows in (("q", q), ("k", k), ("v", k)):
            yield p + f"self_attn.{name}_proj.weight", (rows, h)
            if family == "Qwen2ForCausalLM":
                yield p + f"self_attn.{name}_proj.bias", (rows,)
        if family == "Qwen3ForCausalLM":
            yield p + "self_attn.q_norm.weight", (d,)
            yield p + "self_attn.k_norm.weight", (d,)
        yield p + "self_attn.o_proj.weight", (h, q)
        yield p + "post_attention_layernorm.weight", (h,)
        yield p + "mlp.gate_proj.weight", (f, h)
        yield p + "mlp.up_proj.weight", (f, h)
        yield p + "mlp.down_proj.weight", (h, f)
    yield "model.norm.weight", (h,)
    yield "lm_head.weight", (g["vocab_size"], h)


def write_drawn(folder, config):
    """Writes a model with drawn weights in the layout of transformers."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    x, header, data = SEED, {}, bytearray()
    for name, shape in shapes(config):
        values = []
        for _ in range(int(np.prod(shape))):
            x = (6364136223846793005 * x + 1442695040888963407) % 2**64
            values.append((x >> 40) / 2**23 - 1)
        values = np.array(values, np.float32)
        norm = name.endswith("norm.weight")
        values = values / np.float32(4) + np.float32(1) if norm else values * np.float32(SCALE)
        start = len(data)
        data += values.astype("<f4").tobytes()
        header[name] = dict(dtype="F32", shape=shape, data_offsets=[start, len(data)])
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)


def logits(path, ids, vocabulary):
    """Returns the logits after each token."""
    model = c.llama_model_load_from_file(str(path).encode(), c.llama_model_default_params())
    params = c.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 64
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = c.GGML_TYPE_F32
    params.flash_attn_type = c.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = c.llama_init_from_model(model, params)
    batch = c.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for k, token in enumerate(ids):
        batch.token[k], batch.pos[k], batch.logits[k] = token, k, True
        batch.n_seq_id[k], batch.seq_id[k][0] = 1, 0
    if c.llama_decode(context, batch):
        sys.exit("llama_decode failed")
    row = lambda k: np.ctypeslib.as_array(c.llama_get_logits_ith(context, k), (vocabulary,)).copy()
    rows = [row(k) for k in range(len(ids))]
    c.llama_free(context)
    c.llama_model_free(model)
    return rows


def types(path):
    """Returns the type of each tensor, from the header of the file."""
    data, at = path.read_bytes(), 8

    def number(form):
        nonlocal at
        value, = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize(form)
        return value

    def text():
        nonlocal at
        size = number("Q")
        at += size
        return data[at - size : at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, count = number("I"), number("Q")
            return [value(inner) for _ in range(count)]
        return number("BbHhIif??QqdQ"[kind] if kind != 7 else "?")

    tensors, values = number("Q"), number("Q")
    for _ in range(values):
        text()
        value(number("I"))
    found = {}
    for _ in range(tensors):
        name = text()
        for _ in range(number("I")):
            number("Q")
        found[name] = TYPES[number("I")]
        number("Q")
    return found


def quantized(nsbridge, model, folder, mix):
    """Runs `nsbridge model quantize` and returns its file."""
    subprocess.run([nsbridge, "model", "quantize", model, folder, "--dtype", mix], check=True,
                   stderr=subprocess.DEVNULL)
    return folder / f"model-{mix}.gguf"


def case(nsbridge, scratch, name, config, mix, model):
    path = quantized(nsbridge, model, scratch / f"{name} {mix}", mix)
    vocabulary = config["vocab_size"]
    ids = [(7 * i * i + 3 * i + 5) % vocabulary for i in range(TOKENS)]
    rows = logits(path, ids, vocabulary)
    every = max(1, vocabulary // 128)
    kept = {str(n): [round(float(x), 5) for x in rows[n - 1][::every]] for n in AT}
    return dict(name=name, mix=mix, config=config if name in dict(RANDOM) else None,
                sha256=hashlib.sha256(path.read_bytes()).hexdigest(), tokens=ids, every=every,
                likeliest=[int(row.argmax()) for row in rows], logits=kept)


def mixed(scratch, source):
    """Returns the tensor types that llama.cpp chooses when it quantizes a file in f16."""
    found = {}
    for mix, number in (("q4_k_m", 15), ("q5_k_m", 17), ("q6_k", 18)):
        to, params = scratch / f"theirs-{mix}.gguf", c.llama_model_quantize_default_params()
        params.ftype, params.nthread = number, 1
        if c.llama_model_quantize(str(source).encode(), str(to).encode(), ctypes.byref(params)):
            sys.exit("llama_model_quantize failed")
        found[mix] = types(to)
    return found


def errors():
    """Returns the RMS error of the blocks relative to the RMS of the weights."""
    base = next(Path(c.__file__).parent.glob("lib/libggml-base.so*"))
    ggml, found = ctypes.CDLL(base), {}
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    file = (MODELS / "tale-7m/model.safetensors").read_bytes()
    head, = struct.unpack_from("<Q", file)
    header = json.loads(file[8 : 8 + head])
    pointer = lambda array: array.ctypes.data_as(ctypes.c_void_p)
    for kind, number in (("Q4_K", 12), ("Q5_K", 13)):
        found[kind], back = {}, getattr(ggml, f"dequantize_row_{kind.lower()[:-1]}K")
        for part in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"):
            name = f"model.layers.3.{part}.weight"
            start, end = header[name]["data_offsets"]
            bits = np.frombuffer(file[8 + head + start : 8 + head + end], "<u2")
            x = (bits.astype(np.uint32) << 16).view(np.float32).copy()
            blocks, y = np.zeros(x.nbytes, np.uint8), np.zeros_like(x)
            rows, columns = header[name]["shape"]
            ggml.ggml_quantize_chunk(number, pointer(x), pointer(blocks), ctypes.c_int64(0),
                                     ctypes.c_int64(rows), ctypes.c_int64(columns), None)
            back(pointer(blocks), pointer(y), ctypes.c_int64(x.size))
            wide = lambda v: np.sqrt((v.astype(np.float64) ** 2).mean())
            found[kind][name] = round(float(wide(x - y) / wide(x)), 6)
    return found


def main(nsbridge):
    c.llama_backend_init()
    quiet = c.llama_log_callback(lambda level, text, data: None)
    c.llama_log_set(quiet, None)
    with tempfile.TemporaryDirectory() as scratch:
        scratch, cases = Path(scratch), []
        for name in ("tale-7m", "tale-1m"):
            config = json.loads((MODELS / name / "config.json").read_text())
            cases += [case(nsbridge, scratch, name, config, mix, MODELS / name) for mix in MIXES]
        for name, config in RANDOM:
            write_drawn(scratch / name, config)
            cases += [case(nsbridge, scratch, name, config, mix, scratch / name) for mix in MIXES]
        kinds = mixed(scratch, scratch / "tale-7m f16" / "model-f16.gguf")
    print(json.dumps(dict(seed=SEED, scale=SCALE, mixed=kinds, errors=errors(), cases=cases)))


main(sys.argv[1])
