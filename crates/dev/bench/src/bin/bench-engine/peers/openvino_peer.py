"""OpenVINO as a peer of the bench: the model as optimum-intel exports it, run by infer requests."""

import json
import sys
import time
from pathlib import Path

import numpy
from openvino import Core

# Names of the formats on the command line, and their quantization options for optimum-intel.
FORMATS = {
    "int8": {"bits": 8, "sym": True},
    "bf16": None,
}


def export(folder, format, to):
    """Exports the model once: it takes minutes, and only the export imports torch."""
    if (to / "openvino_model.xml").exists():
        return
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    wanted = FORMATS[format]
    model = OVModelForCausalLM.from_pretrained(
        folder,
        export=True,
        compile=False,
        load_in_8bit=False,
        quantization_config=wanted and OVWeightQuantizationConfig(**wanted),
    )
    new = to.with_suffix(".new")
    model.save_pretrained(new)
    new.rename(to)


def main(folder, format, threads, to):
    to = Path(to)
    export(folder, format, to)
    config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = Core().compile_model(to / "openvino_model.xml", "CPU", config).create_infer_request()
    inputs = {name for tensor in request.model_inputs for name in tensor.names}

    def step(sequences, tokens, position):
        ids = numpy.tile(numpy.arange(tokens, dtype=numpy.int64) * 7 % 1000, (sequences, 1))
        given = {
            "input_ids": ids,
            "attention_mask": numpy.ones((sequences, position + tokens), dtype=numpy.int64),
            "position_ids": numpy.tile(
                numpy.arange(position, position + tokens, dtype=numpy.int64), (sequences, 1)
            ),
            "beam_idx": numpy.arange(sequences, dtype=numpy.int32),
        }
        given = {name: value for name, value in given.items() if name in inputs}
        started = time.perf_counter()
        request.infer(given, share_inputs=True, share_outputs=True)
        return time.perf_counter() - started

    def steps(sequences, tokens, rounds):
        request.reset_state()
        prompt, times, position = tokens > 64, [], 0
        for _ in range(rounds):
            if prompt:
                request.reset_state()
                position = 0
            times.append(step(sequences, tokens, position))
            position += tokens
        return times

    def serve(streams, prompt, tokens):
        """Runs one static batch: all prompts, then one token of each stream per step."""
        request.reset_state()
        started = time.perf_counter()
        step(streams, prompt, 0)
        first = time.perf_counter() - started
        for made in range(tokens - 1):
            request.get_tensor("logits").data[:, -1].argmax(-1)
            step(streams, 1, prompt + made)
        last = time.perf_counter() - started
        return [first, (last - first) / max(tokens - 1, 1), last]

    def logits():
        request.reset_state()
        step(1, 8, 0)
        return request.get_tensor("logits").data[0, -1].astype(float).tolist()

    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if question == "logits":
            answer = logits()
        else:
            (what, how), = question.items()
            answer = {"steps": steps, "serve": serve}[what](**how)
        print(json.dumps(answer), flush=True)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
