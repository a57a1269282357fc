"""llama.cpp as a peer of the bench, through the C interface of llama-cpp-python."""

import ctypes
import json
import sys
import time

import llama_cpp as c
import numpy

SEQUENCES = 16
# Streams that run at once, KV cells of each, and tokens of a batch: defaults of llama.cpp's server.
STREAMS, CELLS, BATCH = 64, 256, 2048


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

    def step(sequences, tokens, position, wanted, context=context):
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

    many = {}

    def served():
        """Returns the context with separate KV memory per stream; the first call creates it."""
        if not many:
            params.n_ctx, params.n_seq_max, params.kv_unified = STREAMS * CELLS, STREAMS, False
            params.n_batch = BATCH
            many["context"] = c.llama_init_from_model(model, params)
            many["batch"] = c.llama_batch_init(BATCH, 0, 1)
        return many["context"], many["batch"]

    def likeliest(context, row):
        logits = numpy.ctypeslib.as_array(c.llama_get_logits_ith(context, row), (vocabulary,))
        return int(logits.argmax())

    def serve(streams, prompt, tokens):
        """Schedules like llama.cpp's server: decoding streams, then prompts, up to a batch."""
        context, batch = served()
        c.llama_memory_clear(c.llama_get_memory(context), True)
        prompts = [[(i * 7 + s * 131) % 1000 for i in range(prompt)] for s in range(streams)]
        done, made, token = [0] * streams, [0] * streams, [0] * streams
        first, last = [0.0] * streams, [0.0] * streams
        started = time.perf_counter()
        while min(made) < tokens:
            n, rows = 0, []

            def add(s, value, position, wanted):
                nonlocal n
                batch.token[n], batch.pos[n] = value, position
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, s
                batch.logits[n] = wanted
                if wanted:
                    rows.append((s, n))
                n += 1

            for s in range(streams):
                if 0 < made[s] < tokens:
                    add(s, token[s], prompt + made[s] - 1, True)
            for s in range(streams):
                while made[s] == 0 and done[s] < prompt and n < BATCH:
                    add(s, prompts[s][done[s]], done[s], done[s] + 1 == prompt)
                    done[s] += 1
            batch.n_tokens = n
            if c.llama_decode(context, batch):
                sys.exit("llama_decode failed")
            for s, row in rows:
                token[s] = likeliest(context, row)
            now = time.perf_counter() - started
            for s, _ in rows:
                first[s] = first[s] or now
                last[s] = now
                made[s] += 1
        gaps = max(tokens - 1, 1)
        mean = lambda values: sum(values) / streams
        return [mean(first), mean([b - a for a, b in zip(first, last)]) / gaps, max(last)]

    def prefix(tokens):
        """Reuses the common prefix of a slot's last two prompts, as llama.cpp's server does."""
        forget()
        times = []
        for tail in range(2):
            kept = tokens if tail else 0
            c.llama_memory_seq_rm(c.llama_get_memory(context), 0, kept, -1)
            ids = [i * 7 % 1000 for i in range(tokens)] + [(i * 11 + tail) % 1000 for i in range(24)]
            started = time.perf_counter()
            for begin in range(kept, len(ids), 512):
                part = ids[begin : begin + 512]
                batch.n_tokens = len(part)
                for k, token in enumerate(part):
                    batch.token[k], batch.pos[k] = token, begin + k
                    batch.n_seq_id[k], batch.seq_id[k][0] = 1, 0
                    batch.logits[k] = begin + k + 1 == len(ids)
                if c.llama_decode(context, batch):
                    sys.exit("llama_decode failed")
            likeliest(context, -1)
            times.append(time.perf_counter() - started)
        return times

    def contexts(lengths):
        params.n_ctx, params.n_seq_max, params.kv_unified = lengths[-1] + 256, 1, True
        long = c.llama_init_from_model(model, params)
        times, steps, position = [], [0.0], 0
        for length in lengths:
            while position < length:
                steps.append(step(1, 256, position, 1, long))
                position += 256
            times.append(sum(steps[-2:]) / 2)
            decoded = []
            for _ in range(9):
                decoded.append(step(1, 1, position, 1, long))
                c.llama_memory_seq_rm(c.llama_get_memory(long), 0, position, -1)
            times.append(sum(decoded[1:]) / 8)
        c.llama_free(long)
        return times

    def logits():
        forget()
        step(1, 8, 0, 1)
        row = c.llama_get_logits_ith(context, -1)
        return [row[i] for i in range(vocabulary)]

    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if question == "logits":
            answer = logits()
        else:
            (what, how), = question.items()
            answer = {"steps": steps, "serve": serve, "prefix": prefix, "contexts": contexts}[what](**how)
        print(json.dumps(answer), flush=True)


main(sys.argv[1], int(sys.argv[2]))
