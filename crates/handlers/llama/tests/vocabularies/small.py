"""Small vocabularies with the token ids of some thousand texts, by the `tokenizers` package.

    python3 tests/vocabularies/small.py > tests/vocabularies.json

Needs requirements.txt. The byte-level vocabulary is trained on unsplit text, so its tokens reach across
every border at which a family splits, and a wrong split changes the ids. For each text and family the
file has the first 32 bits of a SHA-256 of the ids, four bytes each.
"""

import hashlib
import io
import json
import struct
import sys

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import models, pre_tokenizers, trainers


from families import (BYTE_LEVEL, added_token, alphabet, byte_level_tokenizer, ids_of, merges_of_pieces,
                      piece_tokenizer)
from texts import texts

TEXTS, SIZE, PIECES, SEED = 2000, 1800, 2500, 20261124
# Special tokens, and other added ones.
CONTROL = ["<|begin|>", "<|end|>", "<|im_end|>", "<|eot_id|>"]
ADDED = ["<think>", "</think>", "  \n", "ñandú", "<|tool|>"]
# Tokens that no merge makes: with whole words, a word of this text is one token.
WHOLE = ["Ġtokenizer", "123", "Ġwe", "'ve", "ĊĊ", "tokenizer"]
NORMAL, UNKNOWN, CONTROLS, USER, UNUSED, BYTE = range(1, 7)


def digests(made, all_texts, start):
    hashes = (hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids))
              for ids in (ids_of(made, text, start) for text in all_texts))
    return "".join(digest.hexdigest()[:8] for digest in hashes)


def trained(corpus, size):
    """Tokens and merges of byte-level BPE over unsplit text."""
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet(), show_progress=False, max_token_length=12)
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.train_from_iterator(corpus, trainer)
    model = json.loads(made.to_str())["model"]
    vocabulary = sorted(model["vocab"], key=model["vocab"].get)
    return vocabulary, [tuple(merge) for merge in model["merges"]]


def byte_level(all_texts):
    # Without the added tokens, which would become tokens of the text too.
    tokens, merges = trained(texts(TEXTS, ["☃"], SEED + 1), SIZE)
    whole = [token for token in WHOLE if token not in tokens]
    # Special tokens stand at both ends, as in real vocabularies, and rows without a token behind them.
    tokens = CONTROL[:2] + tokens + whole + CONTROL[2:] + ADDED
    types = [CONTROLS if token in CONTROL else USER if token in ADDED else NORMAL for token in tokens]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    added = [added_token(vocabulary[token], token, token in CONTROL) for token in CONTROL + ADDED]
    families = {}
    for family, (_, _, _, starts) in BYTE_LEVEL.items():
        made = byte_level_tokenizer(family, vocabulary, merges, added, (CONTROL[0], 0))
        families[family] = digests(made, all_texts, 0 if starts else None)
    fillers = [f"[PAD{index}]" for index in range(len(tokens), len(tokens) + 4)]
    return dict(tokens=tokens + fillers, types=types + [UNUSED] * 4,
                merges=[" ".join(merge) for merge in merges], families=families)


def pieces(all_texts):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(all_texts), model_writer=out, model_type="bpe", vocab_size=PIECES, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        user_defined_symbols=ADDED[:2], control_symbols=CONTROL[2:], minloglevel=2, num_threads=1,
        allow_whitespace_only_pieces=True, max_sentence_length=1 << 20)
    proto = sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())
    tokens, scores = [piece.piece for piece in proto.pieces], [piece.score for piece in proto.pieces]
    types = [piece.type for piece in proto.pieces]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    special = [index for index, kind in enumerate(types) if kind in (UNKNOWN, CONTROLS, USER)]
    added = [added_token(index, tokens[index], types[index] != USER) for index in special]
    merges = merges_of_pieces(tokens, scores)
    families = {}
    for name, prefixed in (("prefixed", True), ("plain", False)):
        made = piece_tokenizer(vocabulary, merges, added, "<unk>", ("<s>", 1), prefixed)
        families[name] = digests(made, all_texts, 1)
    return dict(tokens=tokens, types=types, scores=scores, families=families)


def main():
    all_texts = texts(TEXTS, CONTROL + ADDED, SEED)
    json.dump(dict(by=f"tokenizers {tokenizers.__version__}", texts=all_texts, byte_level=byte_level(all_texts),
                   pieces=pieces(all_texts)), sys.stdout, ensure_ascii=True)
    print()


if __name__ == "__main__":
    main()
