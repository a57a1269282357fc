"""Blocks of ggml's formats and their weights, by the package `gguf` of llama.cpp.

    python3 vectors/by_gguf.py > vectors/by_gguf.txt

Needs gguf (written with 0.19.0). A line has the name of a format, the bytes of a block, and the bits
of its weights in f32, in hexadecimal. The factors of the blocks are the largest f16, the least one,
zero, negative ones and random ones; all other bits are zeros, ones or random.
"""

import random
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

# Places of the factors in f16. MXFP4 has a byte, the exponent, at its begin.
FACTORS = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0],
    "MXFP4": [], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_XS": [0],
}
EXPONENTS = [0, 1, 2, 100, 127, 128, 251, 252]
# The largest, the least, the least normal one, zeros of both signs, and others.
HALVES = [0x7BFF, 0xFBFF, 0x0001, 0x8001, 0x0400, 0x0000, 0x8000, 0x2E66, 0xA8F5, 0x3C00]


def blocks(name, size, count):
    for at in range(count):
        fill = [0x00, 0xFF, None, None][at % 4]
        block = bytearray(random.randbytes(size) if fill is None else [fill] * size)
        for place in FACTORS[name]:
            struct.pack_into("<H", block, place, random.choice(HALVES))
        if name == "MXFP4":
            block[0] = EXPONENTS[at % len(EXPONENTS)]
        if name == "Q8_0":
            # The engine refuses -128, which no quantizer writes.
            block[2:] = bytes(0x81 if value == 0x80 else value for value in block[2:])
        yield bytes(block)


def main():
    random.seed(7)
    for name in FACTORS:
        kind = GGMLQuantizationType[name]
        columns, size = GGML_QUANT_SIZES[kind]
        for block in blocks(name, size, 16 if columns == 32 else 6):
            weights = dequantize(np.frombuffer(block, np.uint8), kind)
            assert weights.dtype == np.float32 and weights.size == columns
            print(name, block.hex(), weights.astype(">f4").tobytes().hex())


main()
