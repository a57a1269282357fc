// Weights in memory: tiles of sixteen rows, in the order in which the lanes of a warp need them.
//
// A lane has the rows `lane / 4` and that plus 8 of a tile. Of 32 columns of eight bits it has the
// four from `lane % 4 * 4` on and the four 16 columns further, as `mma.m16n8k32` needs them.

#pragma once

#include "args.h"
#include "math.h"

enum Format : uint32_t { Q8_0, Q4_K, Q6_K, BRAINS, F32_ROWS, BF16_ROWS, F16_ROWS, FLOATS8 };

constexpr int TILE = 16;

// Columns of a block of a K-quant, and of its parts.
constexpr int BLOCK = 256;
constexpr int PART = 32;

// Readers of weights: from memory, each byte once; and from what a block of threads has copied.
struct FromMemory {
    static constexpr int UNROLLED = 8;
    DEVICE static Four four(const void *at) { return stream_four(at); }
    DEVICE static Two two(const void *at) { return load_two(at); }
    template <typename T> DEVICE static T read(const T *at) { return load(at); }
};
struct FromStage {
    static constexpr int UNROLLED = 2;
    DEVICE static Four four(const void *at) { return *static_cast<const Four *>(at); }
    DEVICE static Two two(const void *at) { return *static_cast<const Two *>(at); }
    template <typename T> DEVICE static T read(const T *at) { return *at; }
};

// Scales of a tile's row in a block, in words, so that a byte needs no load of its own.
struct Q4Head {
    // d, and the negated factor of the least values.
    uint32_t factors;
    uint32_t scales[2];
    uint32_t least[2];

    template <typename From> DEVICE float d() const {
        return half_float(From::read(&factors) & 0xffff);
    }
    template <typename From> DEVICE float min() const {
        return half_float(From::read(&factors) >> 16);
    }
    template <typename From> DEVICE int32_t scale(int part) const {
        return From::read(&scales[part / 4]) >> part % 4 * 8 & 0xff;
    }
    // The least values of a part and of the next one.
    template <typename From> DEVICE uint32_t two_least(int part) const {
        return From::read(&least[part / 4]) >> part % 4 * 8 & 0xffff;
    }
};
struct Q6Head {
    uint32_t factor;
    uint32_t scales[4];

    template <typename From> DEVICE float d() const { return half_float(From::read(&factor)); }
    template <typename From> DEVICE int32_t scale(int at) const {
        return int8_t(From::read(&scales[at / 4]) >> at % 4 * 8);
    }
};

// Bytes of a tile's values in one block: 256 columns of K-quants, 32 of Q8_0, 16 of bf16.
constexpr uint32_t Q8_BYTES = TILE * 32;
constexpr uint32_t Q4_BYTES = TILE * BLOCK / 2;
constexpr uint32_t Q6_LOW_BYTES = TILE * BLOCK / 2;
constexpr uint32_t Q6_BYTES = TILE * BLOCK * 3 / 4;
constexpr uint32_t BRAIN_BYTES = TILE * 16 * 2;

// Columns of eight-bit floats that share a scale in each row.
constexpr int FLOATS8_COLUMNS = 128;
constexpr uint32_t FLOATS8_BYTES = TILE * FLOATS8_COLUMNS;

// Returns row and column, within a tile and 32 columns, of byte `at` of the 16 bytes of a lane.
DEVICE int row_of(int lane, int at) { return lane / 4 + (at / 4 & 1) * 8; }
DEVICE int column_of(int lane, int at) { return lane % 4 * 4 + at % 4 + at / 8 * 16; }
// The inverse: index of a byte among the 512 of a tile's 32 columns.
DEVICE int byte_of(int row, int column) {
    int lane = row % 8 * 4 + column % 16 / 4;
    return lane * 16 + column / 16 * 8 + row / 8 * 4 + column % 4;
}

// The same for eight-bit floats, which become bf16: of each 16 columns a lane has two, and the two
// eight columns further.
DEVICE int floats8_column_of(int lane, int at) {
    return at / 8 * 16 + at % 4 / 2 * 8 + lane % 4 * 2 + at % 2;
}
DEVICE int floats8_byte_of(int row, int column) {
    int lane = row % 8 * 4 + column % 8 / 2;
    return lane * 16 + column / 16 * 8 + row / 8 * 4 + column % 16 / 8 * 2 + column % 2;
}

// Columns of float rows that lie together: 16 bytes.
template <typename T> constexpr int TOGETHER = 16 / int(sizeof(T));

// Four bytes minus 32 each, as signed ones. No byte is above 63.
DEVICE uint32_t minus_32(uint32_t x) { return ((x | 0x80808080u) - 0x20202020u) ^ 0x80808080u; }

// Bytes of Q6_K's upper bits: for each pair of parts, eight bytes of a lane, whose byte `at % 8` has
// two bits of value `at` of the first part, and of the second part four bits above.
DEVICE int high_shift(int second, int at) { return second * 4 + at / 8 * 2; }

// Returns a weight as the CPU dequantizes it.
DEVICE float weight_at(const Weights &w, uint32_t row, uint32_t column) {
    auto bytes = static_cast<const uint8_t *>(w.values);
    uint64_t tile = row / TILE, in_tile = row % TILE;
    switch (w.format) {
    case Q8_0: {
        uint64_t block = tile * (w.columns / 32) + column / 32;
        auto scales = static_cast<const uint16_t *>(w.heads);
        auto value = int8_t(bytes[block * Q8_BYTES + byte_of(in_tile, column % 32)]);
        return half_float(scales[block * TILE + in_tile]) * float(value);
    }
    case Q4_K: {
        uint64_t block = tile * (w.columns / BLOCK) + column / BLOCK;
        const Q4Head &head = static_cast<const Q4Head *>(w.heads)[block * TILE + in_tile];
        int part = column % BLOCK / PART;
        uint8_t both = bytes[block * Q4_BYTES + part / 2 * 512 + byte_of(in_tile, column % PART)];
        float value = float(both >> part % 2 * 4 & 15);
        float least = float(head.two_least<FromMemory>(part) & 0xff);
        return head.d<FromMemory>() * float(head.scale<FromMemory>(part)) * value + head.min<FromMemory>() * least;
    }
    case Q6_K: {
        uint64_t block = tile * (w.columns / BLOCK) + column / BLOCK;
        const Q6Head &head = static_cast<const Q6Head *>(w.heads)[block * TILE + in_tile];
        int part = column % BLOCK / PART, at = byte_of(in_tile, column % PART);
        const uint8_t *values = bytes + block * Q6_BYTES;
        int low = values[part / 2 * 512 + at] >> part % 2 * 4 & 15;
        uint8_t highs = values[Q6_LOW_BYTES + part / 2 * 256 + at / 16 * 8 + at % 8];
        int high = highs >> high_shift(part % 2, at % 16) & 3;
        float scaled = head.d<FromMemory>() * float(head.scale<FromMemory>(column % BLOCK / 16));
        return scaled * float((low | high << 4) - 32);
    }
    case BRAINS: {
        // Bytes of pairs: 16 columns of two bytes have the place of 32 of one.
        uint64_t block = tile * (w.columns / 16) + column / 16;
        auto at = block * BRAIN_BYTES + byte_of(in_tile, column % 16 * 2);
        return brain_float(uint32_t(bytes[at]) | uint32_t(bytes[at + 1]) << 8);
    }
    case FLOATS8: {
        uint64_t block = tile * (w.columns / FLOATS8_COLUMNS) + column / FLOATS8_COLUMNS;
        int in_block = column % FLOATS8_COLUMNS, at = floats8_byte_of(in_tile, in_block % PART);
        uint8_t value = bytes[block * FLOATS8_BYTES + in_block / PART * 512 + at];
        float scale = static_cast<const float *>(w.heads)[block * TILE + in_tile];
        return brain_float(brains_of_floats8(value) & 0xffff) * scale;
    }
    case F32_ROWS: {
        uint64_t at = (tile * ((w.columns + 3) / 4) + column / 4) * TILE + in_tile;
        return reinterpret_cast<const float *>(bytes)[at * 4 + column % 4];
    }
    default: {
        uint64_t at = (tile * ((w.columns + 7) / 8) + column / 8) * TILE + in_tile;
        uint16_t bits = reinterpret_cast<const uint16_t *>(bytes)[at * 8 + column % 8];
        return w.format == BF16_ROWS ? brain_float(bits) : half_float(bits);
    }
    }
}
