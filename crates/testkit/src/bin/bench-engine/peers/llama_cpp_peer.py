"""llama.cpp at the bench's questions, through the C interface that llama-cpp-python carries."""

import ctypes
import json
import sys
import time

import llama_cpp as c

SEQUENCES = 16


def main(path, threads):
    c.llama_backend_init()
    quiet = c.llama_log_callback(lambda level, text, data: None)
    c.llama_log_set(quiet, None)
    model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
    params = c.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 8192, 512, 512
    params.n_threads = params.n_threads_batch = threads
    params.n_seq_max, params.kv_unified = SEQUENCES, True
    context = c.llama_init_from_model(model, params)
    vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
    batch = c.llama_batch_init(512, 0, 1)
    forget = lambda: c.llama_memory_clear(c.llama_get_memory(context), True)

    def step(sequences, tokens, position, wanted):
        batch.n_tokens = sequences * tokens
        for sequence in range(sequences):
            for i in range(tokens):
                k = sequence * tokens + i
                batch.token[k], batch.pos[k] = i * 7 % 1000, position + i
                batch.n_seq_id[k], batch.seq_id[k][0] = 1, sequence
                batch.logits[k] = i >= tokens - wanted
        started = time.perf_counter()
        if c.llama_decode(context, batch):
            sys.exit("llama_decode failed")
        return time.perf_counter() - started

    def steps(sequences, tokens, rounds):
        forget()
        prompt, times, position = tokens > 64, [], 0
        for _ in range(rounds):
            if prompt:
                forget()
                position = 0
            times.append(step(sequences, tokens, position, 1 if prompt else tokens))
            position += tokens
        return times

    def logits():
        forget()
        step(1, 8, 0, 1)
        row = c.llama_get_logits_ith(context, -1)
        return [row[i] for i in range(vocabulary)]

    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        answer = logits() if question == "logits" else steps(**question["steps"])
        print(json.dumps(answer), flush=True)


main(sys.argv[1], int(sys.argv[2]))
