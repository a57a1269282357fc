"""Bytes and names of the tokens of a model, from its `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, cast

from nsbridge_handler import Fatal, TokenText


class Words:
    """Table of the tokens of a vocabulary."""

    def __init__(self, spelled: Mapping[int, bytes], special: frozenset[int]) -> None:
        """Creates the table of the tokens' bytes; those of a special token are its name."""
        self._spelled = spelled
        self._special = special

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Words:
        """Creates the table of the parsed content of a `tokenizer.json`.

        Raises Fatal if its decoder is not supported.
        """
        byte_level = _is_byte_level(document.get("decoder") or {})
        alphabet = _byte_alphabet()
        spelled: dict[int, bytes] = {}
        for word, token in _vocabulary(document["model"]["vocab"]).items():
            spelled[token] = _byte_level(word, alphabet) if byte_level else _sentence_piece(word)
        special = set[int]()
        for added in document.get("added_tokens") or ():
            spelled[added["id"]] = added["content"].encode()
            if added["special"]:
                special.add(added["id"])
        return cls(spelled, frozenset(special))

    def plain(self, token: int) -> bytes:
        """Returns the bytes that a token stands for; none for a special one."""
        return b"" if token in self._special else self.spelled(token)

    def spelled(self, token: int) -> bytes:
        """Returns the bytes that a token stands for; those of a special token are its name."""
        return self._spelled.get(token, b"")

    def text(self, token: int) -> TokenText:
        """Returns the text of a token by itself, or its bytes if they are no valid text."""
        spelled = self.spelled(token)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return list(spelled)


def _vocabulary(vocab: Any) -> dict[str, int]:
    if isinstance(vocab, dict):
        return cast("dict[str, int]", vocab)
    # Unigram has a list of words with their scores.
    return {word: token for token, (word, _) in enumerate(vocab)}


def _is_byte_level(decoder: Mapping[str, Any]) -> bool:
    parts = decoder.get("decoders") or [decoder]
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        return True
    if kinds & {"ByteFallback", "Metaspace"}:
        return False
    found = decoder.get("type", "absent")
    raise Fatal(
        f"the decoder in tokenizer.json is {found}, and only ByteLevel, Metaspace or one with ByteFallback "
        "is supported"
    )


def _byte_alphabet() -> dict[str, int]:
    """Returns the inverse of GPT-2's table of bytes.

    Printable characters of Latin-1 stand for themselves, the other bytes for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(0x100 + place), byte) for place, byte in enumerate(others))
    return alphabet


def _byte_level(word: str, alphabet: Mapping[str, int]) -> bytes:
    values: list[Optional[int]] = [alphabet.get(character) for character in word]
    known = [value for value in values if value is not None]
    return bytes(known) if len(known) == len(values) else word.encode()


def _sentence_piece(word: str) -> bytes:
    if len(word) == 6 and word.startswith("<0x") and word.endswith(">"):
        try:
            return bytes([int(word[3:5], 16)])
        except ValueError:
            pass
    return word.replace("\u2581", " ").encode()
