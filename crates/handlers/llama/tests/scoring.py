"""Log-probabilities of prompts and embeddings of texts, computed by torch and transformers.

    python3 tests/scoring.py > tests/scoring.json

Needs torch, transformers 5, safetensors and numpy (written with torch 2.15.0 and transformers 5.23.0).

The model is the bundled `tale-7m`, in f32. Its SHA-256 is stored, so that the test says when the
model was trained again and this program has to run again.

`prompts`: for each token after the first, its log-probability by `log_softmax`, its rank from 1
(the number of tokens whose logit is not below its own), and the five most likely tokens.

`texts`: the hidden states after the last norm, of the last token and as the mean over all tokens,
not normalized.
"""

import hashlib
import json
from pathlib import Path

import torch
from transformers import AutoModel, AutoModelForCausalLM

MODEL = Path(__file__).parents[4] / "examples/models/tale-7m"
TOKENS = 4096
LENGTHS = [2, 33, 130]


def drawn(length, seed):
    """Returns token ids without a pattern, after the start token."""
    return [0] + [(at * at * 31 + at * 7 + seed) % (TOKENS - 10) + 10 for at in range(1, length)]


def rounded(numbers, digits):
    return [float(f"{number:.{digits}g}") for number in numbers]


def prompt(model, tokens):
    logits = model(torch.tensor([tokens])).logits[0]
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    positions = []
    for at, token in enumerate(tokens[1:]):
        row = logprobs[at]
        top = torch.topk(row, 5)
        positions.append({
            "logprob": row[token].item(),
            "rank": int((row >= row[token]).sum()),
            "top": [[int(i), v.item()] for v, i in zip(top.values, top.indices)],
        })
    return {"tokens": tokens, "positions": positions}


def text(model, tokens):
    hidden = model(torch.tensor([tokens])).last_hidden_state[0].float()
    return {"tokens": tokens, "last": rounded(hidden[-1].tolist(), 9),
            "mean": rounded(hidden.mean(dim=0).tolist(), 9)}


def main():
    torch.set_grad_enabled(False)
    causal = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    base = AutoModel.from_pretrained(MODEL, dtype=torch.float32).eval()
    digest = hashlib.sha256((MODEL / "model.safetensors").read_bytes()).hexdigest()
    print(json.dumps({
        "sha256": digest,
        "prompts": [prompt(causal, drawn(length, seed)) for seed, length in enumerate(LENGTHS)],
        "texts": [text(base, drawn(length, seed)) for seed, length in enumerate(LENGTHS)],
    }))


if __name__ == "__main__":
    main()
