"""Tokenizer, chat layout and batches: the way from stories to batches of token ids."""

import json
import random
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from stories import LANGUAGES, make_sample

VOCAB = 4096
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
START_HEADER, END_HEADER, END_OF_TURN = "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
SPECIAL = (BEGIN, END, START_HEADER, END_HEADER, END_OF_TURN)

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
    "{%- endif %}"
)

# Japanese is cut where the script changes, which is close to its word boundaries. A name is then
# the same token whatever particle follows it, and even a tiny model copies it easily. An
# unfinished sentence such as クマが海辺に行って is also split as in a story.
PIECES = (
    r"[\p{Katakana}ー]+|\p{Hiragana}+|\p{Han}+"
    r"|'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def common_characters():
    """Returns the kana, and the 2,965 kanji of the first level of JIS X 0208."""
    for row in (4, 5, *range(16, 48)):
        for cell in range(1, 95):
            try:
                yield bytes((0xA0 + row, 0xA0 + cell)).decode("euc_jp")
            except UnicodeDecodeError:
                pass  # a cell that the standard leaves empty


def build_tokenizer(seed, samples=6000):
    """Trains a byte-level BPE with exactly VOCAB entries.

    The stories alone have too few words to fill it, so each common character is added once. The
    words of the stories are frequent and are merged first. A kanji that only a user writes is then
    mostly one token instead of three bytes.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        min_frequency=1,
        max_token_length=36,  # bytes: twelve kana
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def texts():
        for index in range(samples):
            sample = make_sample("train", seed, index)
            if not sample.messages:
                yield sample.story
            for role, content in sample.messages:
                yield f"{role}\n\n{content}"
        for character in common_characters():
            yield f"\n{character}\n"

    tokenizer.train_from_iterator(texts(), trainer)
    if tokenizer.get_vocab_size() != VOCAB:
        raise ValueError(f"the tokenizer has {tokenizer.get_vocab_size()} entries, not {VOCAB}")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, 0)]
    )
    return tokenizer


def stop_ids(tokenizer):
    """Returns the tokens that end a reply."""
    return [tokenizer.token_to_id(name) for name in (END, END_OF_TURN)]


def special_ids(tokenizer):
    return {name: tokenizer.token_to_id(name) for name in SPECIAL}


def tokenizer_config():
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "chat_template": CHAT_TEMPLATE,
    }


def render_chat(messages, generate=False):
    """Renders (role, content) pairs as CHAT_TEMPLATE does, without a template engine."""
    text = BEGIN + "".join(
        f"{START_HEADER}{role}{END_HEADER}\n\n{content.strip()}{END_OF_TURN}"
        for role, content in messages
    )
    return text + (f"{START_HEADER}assistant{END_HEADER}\n\n" if generate else "")


def sample_text(sample):
    return render_chat(sample.messages) if sample.messages else BEGIN + sample.story + END


def encode(tokenizer, text):
    """Returns the ids of a text that already has its special tokens."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def pad(rows, filler):
    """Pads rows of ids to inputs and labels: one row per sample, so no sample sees another.

    Returns ids [batch, length] and labels of the same size, -100 at positions without a target.
    """
    length = max(map(len, rows)) - 1
    ids = torch.full((len(rows), length), filler)
    labels = torch.full((len(rows), length), -100)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens) - 1] = torch.tensor(tokens[:-1])
        labels[row, : len(tokens) - 1] = torch.tensor(tokens[1:])
    return ids, labels


def cut(rows, batch_tokens, seed):
    """Yields batches of about `batch_tokens` from rows, each a tuple that begins with its ids.

    The rows are sorted by length, so that there is little padding. The batches then come in random
    order, so that lengths stay mixed over time.
    """
    found, current = [], []
    for row in sorted(rows, key=lambda row: len(row[0])):
        if current and (len(current) + 1) * len(row[0]) > batch_tokens:
            found.append(current)
            current = []
        current.append(row)
    found.append(current)
    random.Random(seed).shuffle(found)
    return found


def batches(tokenizer, seed, batch_tokens, index=0, pool=256):
    """Yields (ids, labels) of the training stories without end, with the next sample's number."""
    filler = tokenizer.token_to_id(END)
    while True:
        rows = [
            (encode(tokenizer, sample_text(make_sample("train", seed, index + i))),)
            for i in range(pool)
        ]
        index += pool
        for batch in cut(rows, batch_tokens, seed + index):
            yield pad([ids for (ids,) in batch], filler), index


def prompt(tokenizer, split, seed, index):
    """Returns the ids of a prompt: a chat up to its last request, or a raw story's beginning.

    The beginning is cut anywhere within the first sentence or two, or before its first word.
    """
    sample = make_sample(split, seed, index)
    if sample.messages:
        return encode(tokenizer, render_chat(sample.messages[:-1], generate=True))
    tokens = random.Random(f"cut/{split}/{seed}/{index}").randint(0, 16)
    return encode(tokenizer, BEGIN + sample.story)[: 1 + tokens]


def held_out(tokenizer, count, seed=0):
    """Returns `count` held-out samples for each language, as (ids, first id of the story)."""
    found = {}
    for offset, language in enumerate(LANGUAGES):
        found[language] = []
        for index in range(count):
            sample = make_sample("held-out", seed, index * len(LANGUAGES) + offset)
            ids = encode(tokenizer, sample_text(sample))
            before = render_chat(sample.messages[:-1], generate=True) if sample.messages else BEGIN
            found[language].append((ids, len(encode(tokenizer, before))))
    return found


def write_json(path, value):
    Path(path).write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
