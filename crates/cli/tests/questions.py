"""Answers of a chat model to eight natural questions with seeds 1 to 8, as `nsbridge demo --chat` gives them.

    python3 crates/cli/tests/questions.py target/release/nsbridge MODEL.gguf
    python3 crates/cli/tests/questions.py target/release/nsbridge MODEL.gguf --greedy

prints the answers, for a person to judge. With `--greedy`, each token of the answers at temperature 0 is held
against the distribution of transformers, which reads the same GGUF file (packages torch, transformers and gguf):
the program fails if a token is less likely than the likeliest one by more than a bound. An equal text cannot be
asked for: nsbridge multiplies by 8-bit activations, as llama.cpp does, and transformers by 32-bit ones.
"""

import json
import os
import subprocess
import sys

QUESTIONS = ["What is 2+2?", "What is the capital of France?", "Write a short poem about the sea.",
             "How do I boil an egg?", "Say hi", "Who wrote Romeo and Juliet?", "Name three fruits.",
             "Explain gravity to a child."]
MOST_TOKENS = 64
MOST_NATS = 0.5  # of the likeliest token over one that was taken


def answer(binary, model, question, *options):
    """The token ids and the text of an answer."""
    command = [binary, "demo", "--chat", "--model", model, "--json", "--max-tokens", str(MOST_TOKENS), *options]
    printed = subprocess.run([*command, question], check=True, stdout=subprocess.PIPE, text=True).stdout
    *pieces, summary = [json.loads(line) for line in printed.splitlines()]
    return [piece["token"] for piece in pieces if piece["token"] is not None], summary["text"]


def sampled(binary, model):
    for question in QUESTIONS:
        print(question)
        for seed in range(1, 9):
            _, text = answer(binary, model, question, "--seed", str(seed))
            print(f"  {seed}: {' '.join(text.split())}", flush=True)


def greedy(binary, model):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file = os.path.split(os.path.abspath(model))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    peer = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    largest, equal = 0.0, 0
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        tokens, text = answer(binary, model, question, "--temperature", "0")
        with torch.no_grad():
            logits = peer(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1:-1]
        nats = logits.log_softmax(-1)
        behind = nats.max(-1).values - nats[range(len(tokens)), tokens]
        likeliest = int((behind == 0).sum())
        largest, equal = max(largest, float(behind.max())), equal + (likeliest == len(tokens))
        print(f"{question}\n  {likeliest} of {len(tokens)} tokens are the likeliest, the others are behind by at most "
              f"{float(behind.max()):.3f} nats: {' '.join(text.split())}", flush=True)
    print(f"{equal} of {len(QUESTIONS)} answers have the likeliest tokens alone; the largest distance is {largest:.3f}")
    sys.exit(largest > MOST_NATS)


(greedy if sys.argv[3:] == ["--greedy"] else sampled)(*sys.argv[1:3])
