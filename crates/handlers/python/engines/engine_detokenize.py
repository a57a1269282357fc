"""Text of a reply, token by token, never with a part of a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class Stops:
    """Stop sequences of a request."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self._begins = frozenset(text[:size] for text in texts for size in range(1, len(text)))
        self._longest = max((len(text) for text in texts), default=1) - 1

    def find(self, text: str) -> int:
        """Returns the place of the first stop sequence in a text, or -1."""
        return min((at for at in map(text.find, self._texts) if at >= 0), default=-1)

    def begun(self, text: str) -> int:
        """Returns the length of the longest end of a text with which a stop sequence begins."""
        for size in range(min(len(text), self._longest), 0, -1):
            if text[len(text) - size :] in self._begins:
                return size
        return 0


class TextStream:
    """Text of one reply, which ends before the first stop sequence."""

    def __init__(self, stops: Stops) -> None:
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Text that may be the beginning of a stop sequence.
        self._held = ""

    def push(self, data: bytes, last: bool) -> tuple[str, bool]:
        """Adds the bytes of a token. Returns the text that is now final, and true at a stop sequence.

        With the last token, the text that was held is returned. Incomplete characters become U+FFFD.
        """
        self._held += self._decoder.decode(data, last)
        at = self._stops.find(self._held)
        if at >= 0:
            text, self._held = self._held[:at], ""
            return text, True
        certain = len(self._held) - (0 if last else self._stops.begun(self._held))
        text, self._held = self._held[:certain], self._held[certain:]
        return text, False
