"""lm-eval over `/v1/completions`, beside the logits of the model run directly.

lm-eval scores the endings of short stories through the gateway, with token ids, `echo` and `logprobs`. `nsbridge
parity record` writes the logits of the same tokens without queue and gateway. The log-likelihoods must agree.
"""

import glob
import json
import os
import subprocess
import sys

import numpy
import report
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

# Difference of two sums of log-probabilities, in nats. The gateway sends each of them as a decimal number.
TOLERANCE = 1e-4
TASKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tasks")
FOLDER = os.environ["OUTSIDE_MODEL_FOLDER"]
TOKENIZER = Tokenizer.from_file(os.path.join(FOLDER, "tokenizer.json"))
BEGIN = TOKENIZER.token_to_id("<|begin_of_text|>")


def evaluate():
    """Runs lm-eval and returns its samples by task."""
    arguments = {
        "base_url": f"{report.URL}/v1/completions", "model": report.MODEL, "tokenizer": FOLDER,
        "tokenized_requests": True, "num_concurrent": 4, "max_retries": 1, "max_length": 1024,
    }
    command = [
        sys.executable, "-m", "lm_eval", "--model", "local-completions", "--include_path", TASKS,
        "--tasks", "stories_choice,stories_rolling", "--log_samples", "--output_path", "results",
        "--model_args", ",".join(f"{name}={value}" for name, value in arguments.items()),
    ]
    environment = {"OPENAI_API_KEY": report.KEY, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
                   "HF_HOME": os.path.abspath("hub")}
    subprocess.run(["rm", "-rf", "results"], check=True)
    # The data files of the tasks are named without a folder.
    subprocess.run(["cp", os.path.join(TASKS, "stories.jsonl"), "."], check=True)
    subprocess.run(command, env={**os.environ, **environment}, check=True)
    samples = {}
    for task in ["choice", "rolling"]:
        [file] = glob.glob(f"results/**/samples_stories_{task}_*.jsonl", recursive=True)
        with open(file, encoding="utf-8") as lines:
            samples[task] = [json.loads(line) for line in lines]
    return samples


def recorded(tokens):
    """Returns the logits of the model, run directly, after each token."""
    blank = numpy.zeros((len(tokens), TOKENIZER.get_vocab_size()), dtype=numpy.float32)
    save_file({"tokens": numpy.array(tokens, dtype=numpy.int64), "logits": blank}, "asked.safetensors")
    command = [os.environ["OUTSIDE_BINARY"], "parity", "record", "--model", FOLDER, "--reference",
               "asked.safetensors", "--out", "recorded.safetensors"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return load_file("recorded.safetensors")["logits"].astype(numpy.float64)


def directly(tokens, first):
    """Returns the log-likelihood of the tokens from `first` on, and true if greedy decoding gives them."""
    logits = recorded(tokens)[first - 1:-1]
    target = numpy.array(tokens[first:])
    highest = logits.max(axis=1, keepdims=True)
    rows = logits - highest - numpy.log(numpy.exp(logits - highest).sum(axis=1, keepdims=True))
    likelihood = rows[numpy.arange(len(target)), target].sum()
    return likelihood, bool((logits.argmax(axis=1) == target).all())


def ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


samples = evaluate()
report.version("lm-eval", "transformers")
worst = 0.0


def compared(told, tokens, first):
    """Compares a likelihood that lm-eval wrote as a text, and returns that of greedy decoding."""
    global worst
    likelihood, greedy = directly(tokens, first)
    worst = max(worst, abs(float(told) - likelihood))
    assert abs(float(told) - likelihood) <= TOLERANCE, (told, likelihood)
    return greedy


@report.test
def endings_have_the_likelihoods_of_the_model():
    assert len(samples["choice"]) == 5
    for sample in samples["choice"]:
        for index, ending in enumerate(sample["doc"]["endings"]):
            [[told, is_greedy]] = sample["resps"][index]
            start = sample["doc"]["start"]
            greedy = compared(told, ids(start + ending), len(ids(start)))
            assert is_greedy == str(greedy), (ending, is_greedy, greedy)


@report.test
def stories_have_the_likelihoods_of_the_model():
    assert len(samples["rolling"]) == 5
    for sample in samples["rolling"]:
        [[told]] = sample["resps"]
        compared(told[0] if isinstance(told, list) else told, [BEGIN, *ids(sample["doc"]["story"])], 1)


report.figure("largest difference of a log-likelihood", float(f"{worst:.2g}"), "nats")
