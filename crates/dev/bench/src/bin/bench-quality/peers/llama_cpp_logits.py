"""Logits of llama.cpp for windows of tokens, through the C interface of llama-cpp-python.

llama_cpp_logits.py MODEL TOKENS WINDOW OUT reads a JSON list of tokens and writes the logits after
each token, float32, row by row. Each window of tokens is a sequence of its own.
"""

import json
import sys

import llama_cpp as c
import numpy


def main(path, tokens, window, out):
    window = int(window)
    with open(tokens) as file:
        tokens = json.load(file)
    c.llama_backend_init()
    quiet = c.llama_log_callback(lambda level, text, data: None)
    c.llama_log_set(quiet, None)
    model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
    params = c.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = window, window, window
    # The cache holds what was computed, so that only the weights' arithmetic differs.
    params.type_k = params.type_v = c.GGML_TYPE_F32
    context = c.llama_init_from_model(model, params)
    vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
    batch = c.llama_batch_init(window, 0, 1)
    with open(out, "wb") as file:
        for begin in range(0, len(tokens), window):
            c.llama_memory_clear(c.llama_get_memory(context), True)
            batch.n_tokens = window
            for k, token in enumerate(tokens[begin : begin + window]):
                batch.token[k], batch.pos[k] = token, k
                batch.n_seq_id[k], batch.seq_id[k][0] = 1, 0
                batch.logits[k] = True
            if c.llama_decode(context, batch):
                sys.exit("llama_decode failed")
            for k in range(window):
                row = numpy.ctypeslib.as_array(c.llama_get_logits_ith(context, k), (vocabulary,))
                file.write(row.astype("<f4").tobytes())


main(*sys.argv[1:])
