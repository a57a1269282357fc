#!/usr/bin/env python3
"""Measures trained models on held-out stories, and writes their model cards.

    python report.py ../models/tale-7m ../models/tale-1m-plain ../models/tale-1m

The first is the target, the others are its drafts; both cards compare them. train.py does this at
its end. The facts about the training come from training.json, which train.py writes into each
folder; everything else is measured here, on the exported weights.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see train.py

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F

import outputs
from data import held_out, pad, render_chat
from model import replace_file
from sample import CARD_PROMPTS, generate, load, prompt_text
from stories import LANGUAGES, make_sample

LANGUAGE_NAMES = {"ja": "Japanese", "en": "English"}
TEMPERATURES = (1.0, 0.7, 0.0)
COUNT = 100  # held-out samples for each language
DRAWS = 4  # draws of the noise for every token
CHATS = 20  # held-out requests to answer, for each language


@torch.inference_mode()
def held_out_loss(model, samples):
    """Returns nats per token of the stories, given the request where there is one."""
    total, count = 0.0, 0
    for ids, begin in samples:
        inputs, labels = pad([ids], 0)
        logits, labels = model(inputs)[0][0, begin - 1 :], labels[0, begin - 1 :]
        total += F.cross_entropy(logits, labels, reduction="sum").item()
        count += len(labels)
    return total / count


def agreement(target, draft, output, temperature, random):
    """Returns sums over the tokens of one reply of the target, as listed in AGREEMENT.

    `random` generates the noise: from the same state it is the same for every draft.
    """
    ours = target.logits(output.states)
    states = draft.states(torch.tensor([output.ids[:-1]]))[0][0, output.begin - 1 :]
    theirs = draft.logits(states)
    greedy = (ours.argmax(-1) == theirs.argmax(-1)).float().sum().item()
    if temperature == 0:
        return greedy, greedy, greedy
    ours, theirs = (F.log_softmax(logits / temperature, -1) for logits in (ours, theirs))
    shared = torch.minimum(ours.exp(), theirs.exp()).sum().item()
    equal = 0.0
    for _ in range(DRAWS):
        # Minus the logarithm of an exponential variable is a Gumbel variable.
        noise = -torch.empty_like(ours).exponential_(generator=random).log()
        equal += ((ours + noise).argmax(-1) == (theirs + noise).argmax(-1)).float().sum().item()
    return shared, equal / DRAWS, greedy


@torch.inference_mode()
def agreements(target, drafts, tokenizer):
    """Measures how well each draft predicts the target, on texts that the target generates.

    Returns (temperature, language, tokens, [shares for each draft]) for each kind of text.
    """
    rows = []
    for temperature in TEMPERATURES:
        for offset, language in enumerate(LANGUAGES):
            indices = range(offset, COUNT * len(LANGUAGES), len(LANGUAGES))
            random = torch.Generator().manual_seed(offset)
            told = list(
                outputs.sample(target, tokenizer, "held-out", 0, indices, temperature, random)
            )
            tokens = sum(output.tokens for output in told)
            shares = []
            for draft in drafts:
                random = torch.Generator().manual_seed(offset)
                sums = [agreement(target, draft, output, temperature, random) for output in told]
                shares.append([sum(column) / tokens for column in zip(*sums)])
            rows.append((temperature, language, tokens, shares))
            print(f"temperature {temperature}, {language}, {tokens} tokens: {shares}", flush=True)
    return rows


def followed(model, tokenizer, language, count):
    """Counts, for hero, friend and thing, the requests that name one and the stories that have it.

    Uses the first `count` held-out chats of a language, at temperature 0.
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
    """Returns the share of held-out stories that the training contained word for word."""
    samples = facts["stages"]["stories"]["samples"]
    seen = {make_sample("train", facts["seed"], i).story for i in range(samples)}
    held = [make_sample("held-out", 0, i).story for i in range(count * len(LANGUAGES))]
    return sum(story in seen for story in held) / len(held)


def shape_line(shape, parameters):
    return (
        f"{parameters / 1e6:.2f} million parameters: hidden size {shape.hidden}, {shape.layers} "
        f"layers, {shape.heads} heads of {shape.head_dim}, {shape.kv_heads} key-value heads, "
        f"feed-forward size {shape.ffn}, vocabulary {shape.vocab}, tied embeddings, stored in bf16."
    )


def spent(stage):
    return (
        f"{stage['steps']:,} steps, {stage['tokens']:,} tokens, {stage['seconds'] / 60:.0f} "
        f"minutes, learning rate {stage['rate']:g}"
    )


def training_lines(facts, target=None):
    """Returns the card's lines about training.json; `target` names a draft's target."""
    stages = facts["stages"]
    lines = [
        f"- Command: `{facts['command']}`, finished {facts['finished']}."
        + (f" {facts['note']}" if "note" in facts else ""),
        f"- Machine: {facts['machine']}; PyTorch {facts['torch']}, {facts['threads']} threads, "
        f"{facts['arithmetic']}.",
        f"- Cross entropy on the stories, from random weights, no sample twice: "
        f"{spent(stages['stories'])}."
        + (f" `{target}` had no part in it." if target else ""),
    ]
    if "distillation" in stages:
        told, learnt = stages["outputs"], stages["distillation"]
        lines += [
            f"- Then `{target}` told {told['stories']:,} stories of {told['tokens']:,} tokens at "
            f"temperature {told['temperature']:g}, in {told['seconds'] / 60:.0f} minutes: half "
            "after chats and half after beginnings of raw stories, in both languages.",
            f"- On these replies the KL divergence from `{target}`'s whole distribution at every "
            f"token, at temperature 1: {spent(learnt)}; {learnt['rounds']} rounds over them. "
            "No other loss was added.",
        ]
    lines.append(
        "- AdamW (0.9, 0.98), weight decay 0.1, warm-up and cosine in each stage, batches of "
        f"about {facts['batch_tokens']} tokens, one sample to a row."
    )
    return lines


def agreement_lines(target, names, rows):
    heads = [f"{what}, `{name}`" for what in ("1 - TV", "same noise", "greedy") for name in names]
    lines = [
        f"## Agreement with `{target}`",
        "",
        f"Over every token of what `{target}` tells after {COUNT} held-out prompts in each "
        "language, half of them chats and half beginnings of raw stories. For each draft:",
        "",
        "- *1 - TV*: one minus the total variation distance of the two distributions at that "
        "temperature, the chance that speculative sampling (Leviathan et al., 2023) accepts a "
        "drafted token.",
        "- *same noise*: the share of tokens that both draw alike when the same Gumbel noise is "
        f"added to their logits ({DRAWS} draws a token), which is how the bridge draws a draft.",
        "- *greedy*: the share of tokens where both have the same likeliest token.",
        "",
        "| Temperature | Language | Tokens | " + " | ".join(heads) + " |",
        "|---|---|---|" + "---|" * len(heads),
    ]
    for temperature, language, tokens, shares in rows:
        columns = [f"{share:.4f}" for shares_of in zip(*shares) for share in shares_of]
        if temperature == 0:
            # Without sampling, the other two columns would repeat the same value.
            columns[: 2 * len(names)] = ["" for _ in range(2 * len(names))]
        cells = [str(temperature), LANGUAGE_NAMES[language], f"{tokens:,}", *columns]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


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


def intro(name, target, distilled, plain):
    """Returns the card's introduction; the names of target and drafts may be None."""
    if name == target:
        return (
            "A tiny Llama that tells short stories in Japanese and English: an animal goes to the "
            "sea, makes a friend there, and goes home."
            + (f" `{distilled}` is its draft for speculative decoding." if distilled else "")
            + (f" `{plain}` is a draft that never heard of it, to compare." if plain else "")
        )
    if name == distilled:
        return (
            f"The draft of `{target}`: a very small Llama that foresees it for speculative "
            "decoding, having learnt from what it tells. It shares that model's tokenizer and can "
            "also run by itself."
        )
    return (
        f"A draft for `{target}` that never heard of it: a very small Llama that learnt the same "
        "kind of stories. It shares that model's tokenizer and shows what a draft foresees "
        "without being made for its target."
        + (f" `{distilled}` was made from it and is the one to use." if distilled else "")
    )


def card(folder, model, tokenizer, facts, loss, about, training, agreed=()):
    kept = {language: followed(model, tokenizer, language, CHATS) for language in LANGUAGES}
    print(f"{folder.name}: kept {kept}", flush=True)
    title, stages = folder.name, facts["stages"]
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
        about,
        "",
        shape_line(model.shape, model.parameter_count()),
        "",
        "## Data",
        "",
        "Only the stories that `stories.py` in `examples/train-pair` generates, written for this "
        "project; no borrowed text. Half Japanese, half English; half raw stories, half chats in "
        "which a user asks for a story. The tokenizer is a byte-level BPE trained on the same "
        "stories, filled up with kana and common kanji."
        + (" The draft also learnt from what its target tells." if "outputs" in stages else ""),
        "",
        "Licence of the weights and of the generator: MIT OR Apache-2.0.",
        "",
        "## Training",
        "",
        *training,
        "",
        "## Held-out loss",
        "",
        f"On {COUNT} samples of each language from seeds never trained on; nats per token of the "
        "story and its end mark, with the exported bf16 weights"
        f" ({seen_share(facts, COUNT):.1%} of these stories also occur word for word in the "
        "training data):",
        "",
        "| Language | Loss |",
        "|---|---|",
        *(f"| {LANGUAGE_NAMES[language]} | {loss[language]:.4f} |" for language in LANGUAGES),
        "",
    ]
    lines += agreed
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
    return "\n".join(lines) + "\n"


def write_cards(target_folder, draft_folders, with_target=True):
    """Writes the drafts' cards, and the target's unless the target was not trained here."""
    target, tokenizer = load(target_folder)
    drafts = [load(folder)[0] for folder in draft_folders]
    rows = agreements(target, drafts, tokenizer) if drafts else []
    torch.set_num_threads(1)  # decoding token by token is too little work to share
    samples = held_out(tokenizer, COUNT)
    entries = [
        (folder, model, json.loads((folder / "training.json").read_text(encoding="utf-8")))
        for folder, model in zip([target_folder, *draft_folders], [target, *drafts])
        if with_target or folder != target_folder
    ]
    names = [folder.name for folder in draft_folders]
    made = [folder.name for folder, _, facts in entries if "distillation" in facts["stages"]]
    distilled = made[0] if made else None
    plain = next((name for name in names if name != distilled), None)
    for folder, model, facts in entries:
        loss = {language: held_out_loss(model, samples[language]) for language in LANGUAGES}
        print(f"{folder.name}: held-out loss {loss}")
        about = intro(folder.name, target_folder.name, distilled, plain)
        is_draft = folder != target_folder
        training = training_lines(facts, target_folder.name if is_draft else None)
        agreed = agreement_lines(target_folder.name, names, rows) if is_draft else []
        text = card(folder, model, tokenizer, facts, loss, about, training, agreed)
        replace_file(folder / "README.md", text.encode())


def main():
    parser = argparse.ArgumentParser(description="Measure models and write their model cards.")
    parser.add_argument("target", type=Path)
    parser.add_argument("drafts", type=Path, nargs="*")
    args = parser.parse_args()
    for folder in (args.target, *args.drafts):
        if not (folder / "training.json").is_file():
            parser.error(f"{folder} has no training.json, which train.py writes when it is done")
    write_cards(args.target, args.drafts)


if __name__ == "__main__":
    main()
