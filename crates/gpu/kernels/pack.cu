// Packing of a tensor's rows, as a file has them, into tiles.

#include "weights.h"

// Returns a row of the source, or null beyond the last one.
DEVICE const uint8_t *source_row(const PackArgs &a, uint64_t tile, int row) {
    uint64_t number = tile * TILE + row;
    return number < a.rows ? static_cast<const uint8_t *>(a.source) + number * a.row_bytes : nullptr;
}

// Returns four bytes that may lie at any address.
DEVICE uint32_t word(const uint8_t *at) {
    return at[0] | at[1] << 8 | at[2] << 16 | uint32_t(at[3]) << 24;
}

// A block of threads packs one block of columns of a tile: `BLOCK_X` is the tile, `BLOCK_Y` the block.
KERNEL(pack_q8_0, PackArgs, 32) {
    uint64_t tile = BLOCK_X, block = tile * (a.columns / 32) + BLOCK_Y;
    auto values = static_cast<uint8_t *>(a.values) + block * Q8_BYTES;
    auto heads = static_cast<uint16_t *>(a.heads) + block * TILE;
    for (int at = 0; at < 16; at++) {
        const uint8_t *row = source_row(a, tile, row_of(lane(), at));
        uint8_t value = row ? row[uint64_t(BLOCK_Y) * 34 + 2 + column_of(lane(), at)] : 0;
        values[lane() * 16 + at] = value;
    }
    if (lane() < TILE) {
        const uint8_t *row = source_row(a, tile, lane());
        const uint8_t *d = row ? row + uint64_t(BLOCK_Y) * 34 : nullptr;
        heads[lane()] = d ? uint16_t(d[0] | d[1] << 8) : 0;
    }
}

// Rows of E4M3, and then a scale in f32 for each 128 columns.
KERNEL(pack_floats8, PackArgs, 32) {
    uint64_t tile = BLOCK_X, block = tile * (a.columns / FLOATS8_COLUMNS) + BLOCK_Y;
    auto values = static_cast<uint8_t *>(a.values) + block * FLOATS8_BYTES;
    auto heads = static_cast<float *>(a.heads) + block * TILE;
    for (int part = 0; part < FLOATS8_COLUMNS / PART; part++) {
        uint64_t first = uint64_t(BLOCK_Y) * FLOATS8_COLUMNS + part * PART;
        for (int at = 0; at < 16; at++) {
            const uint8_t *row = source_row(a, tile, row_of(lane(), at));
            values[part * 512 + lane() * 16 + at] = row ? row[first + floats8_column_of(lane(), at)] : 0;
        }
    }
    if (lane() < TILE) {
        const uint8_t *row = source_row(a, tile, lane());
        heads[lane()] = row ? bits_float(word(row + a.columns + uint64_t(BLOCK_Y) * 4)) : 0.0f;
    }
}

// Q4_K of a file: d, min, twelve bytes of scales and least values, 128 bytes of values. Of each 64
// columns, the first 32 are in the low nibbles.
KERNEL(pack_q4_k, PackArgs, 32) {
    constexpr int BYTES = 144;
    uint64_t tile = BLOCK_X, block = tile * (a.columns / BLOCK) + BLOCK_Y;
    auto values = static_cast<uint8_t *>(a.values) + block * Q4_BYTES;
    auto heads = static_cast<Q4Head *>(a.heads) + block * TILE;
    for (int pair = 0; pair < 4; pair++) {
        for (int at = 0; at < 16; at++) {
            const uint8_t *row = source_row(a, tile, row_of(lane(), at));
            const uint8_t *from = row ? row + uint64_t(BLOCK_Y) * BYTES + 16 : nullptr;
            values[pair * 512 + lane() * 16 + at] = from ? from[pair * 32 + column_of(lane(), at)] : 0;
        }
    }
    if (lane() < TILE) {
        const uint8_t *row = source_row(a, tile, lane());
        Q4Head head = {};
        if (row) {
            const uint8_t *from = row + uint64_t(BLOCK_Y) * BYTES, *packed = from + 4;
            head.factors = word(from) ^ 0x80000000;
            for (int part = 0; part < 4; part++) {
                uint32_t scale = packed[part], least = packed[part + 4], rest = packed[part + 8];
                head.scales[0] |= (scale & 63) << part * 8;
                head.least[0] |= (least & 63) << part * 8;
                head.scales[1] |= ((rest & 15) | scale >> 6 << 4) << part * 8;
                head.least[1] |= (rest >> 4 | least >> 6 << 4) << part * 8;
            }
        }
        heads[lane()] = head;
    }
}

// Q6_K of a file: lower four bits, upper two bits, scales of 16 columns, d. Each 128 columns have four
// parts of 32, the first two in the low nibbles.
DEVICE int six_bits(const uint8_t *from, int column) {
    int half = column / 128, part = column / 32 % 4, k = column % 32;
    int low = from[64 * half + 32 * (part % 2) + k] >> 4 * (part / 2) & 15;
    int high = from[128 + 32 * half + k] >> 2 * part & 3;
    return low | high << 4;
}
KERNEL(pack_q6_k, PackArgs, 32) {
    constexpr int BYTES = 210;
    uint64_t tile = BLOCK_X, block = tile * (a.columns / BLOCK) + BLOCK_Y;
    auto values = static_cast<uint8_t *>(a.values) + block * Q6_BYTES;
    auto heads = static_cast<Q6Head *>(a.heads) + block * TILE;
    for (int pair = 0; pair < 4; pair++) {
        uint8_t highs[8] = {};
        for (int at = 0; at < 16; at++) {
            const uint8_t *row = source_row(a, tile, row_of(lane(), at));
            const uint8_t *from = row ? row + uint64_t(BLOCK_Y) * BYTES : nullptr;
            uint8_t both = 0;
            for (int second = 0; second < 2; second++) {
                int column = (2 * pair + second) * PART + column_of(lane(), at);
                int value = from ? six_bits(from, column) : 32;
                both |= (value & 15) << second * 4;
                highs[at % 8] |= value >> 4 << high_shift(second, at);
            }
            values[pair * 512 + lane() * 16 + at] = both;
        }
        for (int at = 0; at < 8; at++) {
            values[Q6_LOW_BYTES + pair * 256 + lane() * 8 + at] = highs[at];
        }
    }
    if (lane() < TILE) {
        const uint8_t *row = source_row(a, tile, lane());
        Q6Head head = {};
        if (row) {
            const uint8_t *from = row + uint64_t(BLOCK_Y) * BYTES;
            for (int i = 0; i < 4; i++) {
                head.scales[i] = word(from + 192 + 4 * i);
            }
            head.factor = from[208] | from[209] << 8;
        }
        heads[lane()] = head;
    }
}

// Sixteen columns of bf16.
KERNEL(pack_brains, PackArgs, 32) {
    uint64_t tile = BLOCK_X, block = tile * (a.columns / 16) + BLOCK_Y;
    auto values = static_cast<uint8_t *>(a.values) + block * BRAIN_BYTES;
    for (int at = 0; at < 16; at++) {
        const uint8_t *row = source_row(a, tile, row_of(lane(), at));
        values[lane() * 16 + at] = row ? row[uint64_t(BLOCK_Y) * 32 + column_of(lane(), at)] : 0;
    }
}

// Sixteen bytes of each row of floats.
KERNEL(pack_floats, PackArgs, 32) {
    uint32_t groups = (a.row_bytes + 15) / 16;
    uint64_t tile = BLOCK_X, group = tile * groups + BLOCK_Y;
    if (lane() >= TILE) {
        return;
    }
    auto values = static_cast<uint8_t *>(a.values) + (group * TILE + lane()) * 16;
    const uint8_t *row = source_row(a, tile, lane());
    for (uint32_t at = 0; at < 16; at++) {
        uint32_t from = BLOCK_Y * 16 + at;
        values[at] = row && from < a.row_bytes ? row[from] : 0;
    }
}
