#!/usr/bin/env python3
"""Generates stories with a trained model.

python sample.py ../models/tale-7m      (the prompts of its card)
python sample.py ../models/tale-7m --prompt "Once a bear went to the sea"
python sample.py ../models/tale-7m --chat "クマとアザラシの物語を書いて" --temperature 0.7
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see train.py

import argparse
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from data import BEGIN, encode, render_chat, stop_ids
from model import load_model

# (kind, language, text) of the samples in the model card.
CARD_PROMPTS = (
    ("raw", "ja", "クマが海辺に行って"),
    (
        "chat",
        "ja",
        "クマが海辺に行ってアザラシと友達になり最終的には家に帰るという"
        "プロットの短編小説を書いてください",
    ),
    (
        "chat",
        "ja",
        "ウサギが浜辺に行ってイルカと友達になり、光る石を見つけ、家に帰る物語を書いてください",
    ),
    ("raw", "en", "Once a bear went to the sea"),
    (
        "chat",
        "en",
        "Write a short story about a bear who goes to the sea and makes friends with a seal.",
    ),
    (
        "chat",
        "en",
        "Tell me a story about a fox who goes to the beach, makes friends with an otter, "
        "loses his hat in the wind but is helped and finally goes home.",
    ),
)


def load(folder):
    """Loads model and tokenizer from `folder`; exits with one sentence if they are missing."""
    folder = Path(folder)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise SystemExit(f"{Path(sys.argv[0]).name}: {folder} has no {name}")
    return load_model(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))


@torch.inference_mode()
def generate(model, tokenizer, text, temperature=0.0, seed=0, max_tokens=400):
    """Returns the reply to `text`, which already has its special tokens, and its length."""
    stop = stop_ids(tokenizer)
    random = torch.Generator().manual_seed(seed)
    prompt = encode(tokenizer, text)
    max_tokens = min(max_tokens, model.shape.max_positions - len(prompt))
    said, ids, past = [], torch.tensor([prompt]), None
    while len(said) < max_tokens:
        logits, past = model(ids, past)
        logits = logits[0, -1].float()
        if temperature > 0:
            chances = (logits / temperature).softmax(-1)
            token = int(torch.multinomial(chances, 1, generator=random))
        else:
            token = int(logits.argmax())
        if token in stop:
            break
        said.append(token)
        ids = torch.tensor([[token]])
    return tokenizer.decode(said), len(said)


def prompt_text(kind, text):
    return BEGIN + text if kind == "raw" else render_chat([("user", text)], generate=True)


def main():
    parser = argparse.ArgumentParser(description="Let a trained model tell stories.")
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("--prompt", help="the beginning of a text to go on with")
    parser.add_argument("--chat", help="a request, put through the chat template")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest (0)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.temperature < 0 or args.max_tokens <= 0 or args.threads <= 0:
        parser.error("numbers must be positive")
    torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model)
    asked = [("raw", args.prompt)] if args.prompt is not None else []
    asked += [("chat", args.chat)] if args.chat is not None else []
    for kind, text in asked or [(kind, text) for kind, _, text in CARD_PROMPTS]:
        said, length = generate(
            model, tokenizer, prompt_text(kind, text), args.temperature, args.seed, args.max_tokens
        )
        print(f"[{kind}] {text}\n[{length} tokens] {said}\n")


if __name__ == "__main__":
    main()
