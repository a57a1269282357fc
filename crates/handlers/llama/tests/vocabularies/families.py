"""The families of tokenizers, in the parts of the `tokenizers` package.

Each is as in the `tokenizer.json` of a model of its family, or as transformers' own class for it. None
is made by this project's reader of GGUF files.
"""

import json

from tokenizers import Tokenizer


def split(regex):
    return dict(type="Split", pattern=dict(Regex=regex), behavior="Isolated", invert=False)


def byte_level(regex):
    return dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=regex)


DIGITS = dict(type="Digits", individual_digits=True)
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{TAIL}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{TAIL}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
TEKKEN = rf"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*|\p{{N}}|{SYMBOLS}|{TAIL}"
GPT_4O = (rf"{BEFORE}{UPPER}*{LOWER}+{CONTRACTIONS}?|{BEFORE}{UPPER}+{LOWER}*{CONTRACTIONS}?"
          rf"|\p{{N}}{{1,3}}|{SYMBOLS}|{TAIL}")
DEEPSEEK_LLM = [
    split("[\r\n]"),
    # Normalization would replace the escaped letters by others.
    split("\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7d"
          "ᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗ"
          "Ａ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"),
    split("\\s?[!-/:-~！-／：-～‘-‟　-。]+"),
    split("\\s+$"),
    split("[一-龥ࠀ-一가-퟿]+"),
    DIGITS,
    byte_level(False),
]
DEEPSEEK_CODER = [split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), DIGITS,
                  byte_level(False)]
DEEPSEEK_V3 = [
    split("\\p{N}{1,3}"),
    split("[一-龥\u3040-ゟ゠-ヿ]+"),
    split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
          "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
    byte_level(False),
]


def words(regex):
    return [split(regex), byte_level(False)]


# Steps of splitting, NFC, whole words, start token, by llama.cpp's name.
BYTE_LEVEL = {
    "gpt-2": ([byte_level(True)], False, False, False),
    "smollm": ([DIGITS, byte_level(True)], False, False, False),
    "starcoder": ([DIGITS, byte_level(True)], False, False, False),
    "refact": ([DIGITS, byte_level(True)], False, False, False),
    "command-r": ([DIGITS, byte_level(True)], True, False, False),
    "olmo": ([byte_level(True)], True, False, False),
    "llama-bpe": (words(LLAMA3), False, True, True),
    "llama3": (words(LLAMA3), False, True, True),
    "llama-v3": (words(LLAMA3), False, True, True),
    "dbrx": (words(LLAMA3), False, False, False),
    "qwen2": (words(QWEN2), True, False, False),
    "deepseek-r1-qwen": (words(QWEN2), True, False, False),
    "tekken": (words(TEKKEN), False, True, True),
    "gpt-4o": (words(GPT_4O), False, False, False),
    "llama4": (words(GPT_4O), False, False, False),
    "deepseek-llm": (DEEPSEEK_LLM, False, False, False),
    "deepseek-coder": (DEEPSEEK_CODER, False, False, False),
    "deepseek-v3": (DEEPSEEK_V3, False, False, False),
}


def added_token(index, text, special):
    return dict(id=index, content=text, special=special, single_word=False, lstrip=False, rstrip=False, normalized=False)


def starting_with(token, index):
    """The step that puts the start token in front."""
    return dict(
        type="TemplateProcessing",
        single=[dict(SpecialToken=dict(id=token, type_id=0)), dict(Sequence=dict(id="A", type_id=0))],
        pair=[dict(Sequence=dict(id="A", type_id=0)), dict(Sequence=dict(id="B", type_id=1))],
        special_tokens={token: dict(id=token, ids=[index], tokens=[token])})


def tokenizer(model, added, normalizer, pre_tokenizer, start):
    return Tokenizer.from_str(json.dumps(dict(
        version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=normalizer,
        pre_tokenizer=pre_tokenizer, post_processor=start and starting_with(*start), decoder=None, model=model)))


def bpe(vocabulary, merges, **options):
    return dict(dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
                     fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocabulary, merges=merges),
                **options)


def byte_level_tokenizer(family, vocabulary, merges, added, start):
    """A tokenizer of a byte-level family. `start` is the start token with its id, where it has one."""
    steps, composed, whole_words, starts = BYTE_LEVEL[family]
    return tokenizer(bpe(vocabulary, merges, ignore_merges=whole_words), added,
                     dict(type="NFC") if composed else None, dict(type="Sequence", pretokenizers=steps),
                     start if starts else None)


def piece_tokenizer(vocabulary, merges, added, unknown, start, prefixed=True):
    """A tokenizer of SentencePiece's BPE, as transformers' converter writes Llama's."""
    spaces = dict(type="Replace", pattern=dict(String=" "), content="▁")
    prefix = [dict(type="Prepend", prepend="▁")] if prefixed else []
    return tokenizer(bpe(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True), added,
                     dict(type="Sequence", normalizers=prefix + [spaces]), None, start)


def merges_of_pieces(pieces, scores):
    """Pairs that make a piece, in the order of transformers' `generate_merges`."""
    ids = {piece: index for index, piece in enumerate(pieces)}
    merges = []
    for piece, score in zip(pieces, scores):
        cuts = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        local = [(left, right, score) for left, right in cuts if left in ids and right in ids]
        merges += sorted(local, key=lambda merge: (ids[merge[0]], ids[merge[1]]))
    merges.sort(key=lambda merge: (merge[2], len(merge[0]), len(merge[1])), reverse=True)
    return [merge[:2] for merge in merges]


def merges_of_ranks(ranks):
    """Pairs that make a token of a tiktoken vocabulary, in the order of transformers' converter."""
    merges = []
    for token, rank in ranks.items():
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        local = [(left, right, rank) for left, right in cuts if left in ranks and right in ranks]
        merges += sorted(local, key=lambda merge: (ranks[merge[0]], ranks[merge[1]]))
    merges.sort(key=lambda merge: merge[2])
    return [merge[:2] for merge in merges]


def alphabet():
    """The character that stands for each byte in GPT-2's vocabulary."""
    plain = {*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def ids_of(made, text, start):
    """The ids of a raw prompt. The start token is not doubled."""
    ids = made.encode(text).ids
    return ids if start is None or ids[:1] == [start] else [start, *ids]
