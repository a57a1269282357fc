"""Features of a text, as `examples/classifier/src/grams.rs` computes them."""

import re

import numpy

LONGEST = 4  # letters of an n-gram


def grams(text, buckets):
    """Returns the roots of the counts of hashed n-grams with norm 1; None without letters."""
    row = numpy.zeros(buckets, numpy.float32)
    for word in re.findall(r"[^\W\d_]+", text.lower()):
        letters = f"_{word}_"
        for long in range(1, LONGEST + 1):
            for at in range(len(letters) - long + 1):
                row[fnv1a(letters[at : at + long]) % buckets] += 1
    row = numpy.sqrt(row)
    length = numpy.sqrt((row * row).sum())
    return row / length if length else None


def fnv1a(letters):
    """Returns the 64-bit hash of characters, each as four bytes, the least significant first."""
    value = 0xCBF29CE484222325
    for byte in letters.encode("utf-32-le"):
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value
