#!/usr/bin/env python3
"""Measures trained models on stories never trained on, and writes their model cards.

    python report.py ../models/tale-7m ../models/tale-1m

train.py does this by itself at its end. The facts about the training come from training.json,
which train.py leaves in each folder; everything else is measured here, on the exported weights.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see train.py

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F

from data import held_out, pad, render_chat
from model import replace_file
from sample import CARD_PROMPTS, generate, load, prompt_text
from stories import LANGUAGES, make_sample

LANGUAGE_NAMES = {"ja": "Japanese", "en": "English"}
TEMPERATURES = (0.7, 1.0)
COUNT = 100  # held-out samples for each language
CHATS = 20  # held-out requests to answer, for each language


@torch.inference_mode()
def story_logits(model, samples):
    """For each sample: logits and true tokens at the places of the story and its end mark."""
    for ids, begin in samples:
        inputs, labels = pad([ids], 0)
        yield model(inputs)[0][0, begin - 1 :], labels[0, begin - 1 :]


def held_out_loss(model, samples):
    """Nats per token of the stories, given the request where there is one."""
    total, count = 0.0, 0
    for logits, labels in story_logits(model, samples):
        total += F.cross_entropy(logits, labels, reduction="sum").item()
        count += len(labels)
    return total / count


def agreement(target, draft, samples):
    """How far the draft foresees the target, over every token of the stories.

    1 - total variation is the chance that speculative sampling accepts a drafted token.
    """
    sums, count = {"greedy": 0.0, **{t: 0.0 for t in TEMPERATURES}}, 0
    for (ours, labels), (theirs, _) in zip(
        story_logits(target, samples), story_logits(draft, samples)
    ):
        sums["greedy"] += (ours.argmax(-1) == theirs.argmax(-1)).float().sum().item()
        for t in TEMPERATURES:
            shared = torch.minimum((ours / t).softmax(-1), (theirs / t).softmax(-1))
            sums[t] += shared.sum().item()
        count += len(labels)
    return {key: value / count for key, value in sums.items()}


def followed(model, tokenizer, language, count):
    """For hero, friend and thing: in how many of the requests that name one the story has it.

    Over the first `count` held-out chats of a language, at temperature 0.
    """
    tally = {"hero": [0, 0], "friend": [0, 0], "thing found": [0, 0]}
    index = LANGUAGES.index(language)
    while count:
        sample = make_sample("held-out", 0, index)
        index += len(LANGUAGES)
        if len(sample.plots) > 1 or not sample.messages:
            continue
        count -= 1
        request = sample.messages[-2][1]
        said, _ = generate(model, tokenizer, render_chat(sample.messages[:-1], generate=True))
        plot = sample.plots[0]
        for key, word in zip(tally, (plot.hero, plot.friend, plot.item)):
            if word and word in request:
                tally[key][0] += word in said
                tally[key][1] += 1
    return tally


def seen_share(facts, count):
    """The share of the held-out stories that the training happened to contain word for word."""
    seen = {make_sample("train", facts["seed"], i).story for i in range(facts["samples"])}
    held = [make_sample("held-out", 0, i).story for i in range(count * len(LANGUAGES))]
    return sum(story in seen for story in held) / len(held)


def shape_line(shape, parameters):
    return (
        f"{parameters / 1e6:.2f} million parameters: hidden size {shape.hidden}, {shape.layers} "
        f"layers, {shape.heads} heads of {shape.head_dim}, {shape.kv_heads} key-value heads, "
        f"feed-forward size {shape.ffn}, vocabulary {shape.vocab}, tied embeddings, stored in bf16."
    )


def training_lines(facts, is_draft):
    together, alone = facts["together"], facts["draft alone"]
    lines = [
        f"- Command: `{facts['command']}`, finished {facts['finished']}.",
        f"- Machine: {facts['machine']}; PyTorch {facts['torch']}, {facts['threads']} threads, "
        f"{facts['arithmetic']}.",
        f"- {together['steps']:,} steps, {together['tokens']:,} tokens seen "
        f"(no sample twice), {together['seconds'] / 60:.0f} minutes"
        + (", both models at once on the same batches." if alone["steps"] else "."),
    ]
    if is_draft:
        lines += [
            f"- Then {alone['steps']:,} steps, {alone['tokens']:,} tokens and "
            f"{alone['seconds'] / 60:.0f} minutes for the draft alone, the target being fixed.",
            "- Loss: cross entropy with the true next token, plus the KL divergence from the "
            "target's distribution on the same batch (temperature 1, equal weights). While both "
            "trained, that was the target as it was at the moment.",
        ]
    lines.append(
        "- AdamW (0.9, 0.98), weight decay 0.1, warm-up and cosine, batches of about "
        f"{facts['batch_tokens']} tokens, one sample to a row."
    )
    return lines


def sample_lines(model, tokenizer):
    lines = []
    for kind, language, text in CARD_PROMPTS:
        said, _ = generate(model, tokenizer, prompt_text(kind, text))
        lines += [
            f"**{LANGUAGE_NAMES[language]}, "
            + ("raw text" if kind == "raw" else "chat")
            + f":** {text}",
            "",
            f"> {said.strip()}",
            "",
        ]
    return lines


LIMITS = """\
- It tells one kind of story, from a fixed set of animals, names, places, things and troubles, and
  tells each event in one of a few ways. It knows nothing else, and whatever is asked, it answers
  with such a story.
- Of a long request it may forget a part, or add a thing or a trouble that was not asked for; the
  table above counts what was kept.
- A request with an animal, a place or an event that the generator lacks gets a story about others.
- Trained on samples of at most some 600 tokens, mostly 130 to 280: longer chats are untried.
- It is meant for trying out and testing the bridge without downloading a model, not for use."""


def card(folder, model, tokenizer, loss, facts, seen, other, agreed=None):
    kept = {language: followed(model, tokenizer, language, CHATS) for language in LANGUAGES}
    print(f"{folder.name}: kept {kept}", flush=True)
    is_draft = agreed is not None
    title = folder.name
    lines = [
        "---",
        "license: MIT OR Apache-2.0",
        "language: [ja, en]",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "---",
        "",
        f"# {title}",
        "",
        (
            f"The draft of the pair: a very small Llama that foresees `{other}` for speculative "
            "decoding. It shares that model's tokenizer and can also run by itself."
            if is_draft
            else "A tiny Llama that tells short stories in Japanese and English: an animal goes to "
            "the sea, makes a friend there, and goes home."
            + (f" `{other}` is its draft for speculative decoding." if other else "")
        ),
        "",
        shape_line(model.shape, model.parameter_count()),
        "",
        "## Data",
        "",
        "Only the stories that `stories.py` in `examples/train-pair` generates, written for this "
        "project; no borrowed text. Half Japanese, half English; half raw stories, half chats in "
        "which a user asks for a story. The tokenizer is a byte-level BPE trained on the same "
        "stories, filled up with kana and common kanji.",
        "",
        "Licence of the weights and of the generator: MIT OR Apache-2.0.",
        "",
        "## Training",
        "",
        *training_lines(facts, is_draft),
        "",
        "## Held-out loss",
        "",
        f"On {COUNT} samples of each language from seeds never trained on; nats per token of the "
        "story and its end mark, with the exported bf16 weights"
        f" ({seen:.1%} of these stories also occur word for word in the training data):",
        "",
        "| Language | Loss |",
        "|---|---|",
        *(f"| {LANGUAGE_NAMES[language]} | {loss[language]:.4f} |" for language in LANGUAGES),
        "",
    ]
    if is_draft:
        lines += [
            f"## Agreement with `{other}`",
            "",
            "Over every token of the same held-out stories. One minus the total variation distance "
            "is the chance that speculative sampling accepts a drafted token.",
            "",
            "| Language | "
            + " | ".join(f"1 - TV, temperature {t}" for t in TEMPERATURES)
            + " | same greedy token |",
            "|---|" + "---|" * (len(TEMPERATURES) + 1),
            *(
                f"| {LANGUAGE_NAMES[language]} | "
                + " | ".join(f"{agreed[language][key]:.4f}" for key in (*TEMPERATURES, "greedy"))
                + " |"
                for language in LANGUAGES
            ),
            "",
        ]
    lines += [
        "## What it keeps of a request",
        "",
        f"Of {CHATS} held-out requests in each language, answered at temperature 0: how many of "
        "the stories have what the request names.",
        "",
        "| Language | " + " | ".join(kept[LANGUAGES[0]]) + " |",
        "|---|" + "---|" * len(kept[LANGUAGES[0]]),
        *(
            f"| {LANGUAGE_NAMES[language]} | "
            + " | ".join(f"{have} of {asked}" for have, asked in kept[language].values())
            + " |"
            for language in LANGUAGES
        ),
        "",
        "## Samples",
        "",
        f"As printed by `python sample.py ../models/{title}` (temperature 0):",
        "",
        *sample_lines(model, tokenizer),
        "## Known limits",
        "",
        LIMITS,
    ]
    if is_draft:
        lines.append(
            "- By itself it loses track of names and things more often than its target does."
        )
    return "\n".join(lines) + "\n"


def write_cards(target_folder, draft_folder=None):
    torch.set_num_threads(1)  # telling a story token by token is too little work to share
    target, tokenizer = load(target_folder)
    facts = json.loads((target_folder / "training.json").read_text(encoding="utf-8"))
    samples = held_out(tokenizer, COUNT)
    seen = seen_share(facts, COUNT)
    other = draft_folder.name if draft_folder else None
    loss = {language: held_out_loss(target, samples[language]) for language in LANGUAGES}
    text = card(target_folder, target, tokenizer, loss, facts, seen, other)
    replace_file(target_folder / "README.md", text.encode())
    print(f"{target_folder.name}: held-out loss {loss}")
    if draft_folder:
        draft, _ = load(draft_folder)
        loss = {language: held_out_loss(draft, samples[language]) for language in LANGUAGES}
        agreed = {language: agreement(target, draft, samples[language]) for language in LANGUAGES}
        text = card(draft_folder, draft, tokenizer, loss, facts, seen, target_folder.name, agreed)
        replace_file(draft_folder / "README.md", text.encode())
        print(f"{draft_folder.name}: held-out loss {loss}, agreement {agreed}")


def main():
    parser = argparse.ArgumentParser(description="Measure models and write their model cards.")
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path, nargs="?")
    args = parser.parse_args()
    for folder in filter(None, (args.target, args.draft)):
        if not (folder / "training.json").is_file():
            parser.error(f"{folder} has no training.json, which train.py writes when it is done")
    write_cards(args.target, args.draft)


if __name__ == "__main__":
    main()
