// Products of a matrix with rows of activations.
//
// A warp has a tile of sixteen rows and a segment of the columns. It adds its products up in the order
// of the columns, and the segments are added by a tree: so the sums do not depend on the number of
// rows of activations, and a rank with some of the segments has a subtree.
//
// There are two kernels for each format of tensor cores, with the same sums. With few rows of
// activations, each warp has a segment of its own, and reads from memory. With many, the warps of a
// block go through all segments together, and share what they read.

#include "formats.h"

// Formats of tensor cores, with the rows of activations in memory.
template <typename F> struct OfTensors : F {
    template <int N>
    DEVICE static void add(const ProductArgs &a, uint64_t tile, uint32_t segment, uint32_t first,
                           uint32_t count, float (&sums)[N][4]) {
        uint32_t blocks = a.weights.columns / F::COLUMNS, share = blocks / a.segments;
        RowsInMemory<N> x(a, blocks, a.x_stride * F::X_SIZE, first, count);
        float own[1][N][4] = {};
        F::add(a, tile, segment * share, (segment + 1) * share, x, own);
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < 4; i++) {
                sums[n][i] = own[0][n][i];
            }
        }
    }
};

// Floats with f32 activations, by fused multiply-adds in the order of the columns. A lane has one row
// of the tile and four rows of activations.
template <typename T, bool BRAIN> struct OfFloats {
    DEVICE static Place place(int i) { return Place{lane() % 16, lane() / 16 * 4 + i}; }

    template <int N>
    DEVICE static void add(const ProductArgs &a, uint64_t tile, uint32_t segment, uint32_t first,
                           uint32_t count, float (&sums)[N][4]) {
        constexpr uint32_t WIDE = TOGETHER<T>;
        // Groups that a lane loads before it multiplies the first: as many as have registers.
        constexpr uint32_t LOADED = N < 4 ? (sizeof(T) < 4 ? 2 : 4) : N < 8 ? 2 : 1;
        uint32_t groups = (a.weights.columns + WIDE - 1) / WIDE;
        uint32_t share = a.weights.columns / a.segments;
        uint32_t begin = segment * share, end = begin + share;
        auto values = static_cast<const unsigned char *>(a.weights.values);
        auto x = static_cast<const float *>(a.x);
        uint32_t last = (end + WIDE - 1) / WIDE;
        for (uint32_t from = begin / WIDE; from < last; from += LOADED) {
            Four four[LOADED];
#pragma unroll
            for (uint32_t j = 0; j < LOADED; j++) {
                if (from + j < last) {
                    uint64_t at = (tile * groups + from + j) * TILE + lane() % 16;
                    four[j] = load_four(values + at * 16);
                }
            }
#pragma unroll
            for (uint32_t k = 0; k < LOADED * WIDE; k++) {
                uint32_t column = from * WIDE + k, j = k / WIDE, own = k % WIDE;
                if (column < begin || column >= end) {
                    continue;
                }
                float w;
                if (sizeof(T) == 4) {
                    w = bits_float(four[j].x[own % 4]);
                } else {
                    uint32_t bits = four[j].x[own / 2 % 4] >> own % 2 * 16 & 0xffff;
                    w = BRAIN ? brain_float(bits) : half_float(bits);
                }
#pragma unroll
                for (int n = 0; n < N; n++) {
                    for (int i = 0; i < 4; i++) {
                        uint64_t row = least_of(first + n * 8 + lane() / 16 * 4 + i, count - 1);
                        sums[n][i] = fused(w, load(x + row * a.x_stride + column), sums[n][i]);
                    }
                }
            }
        }
    }
};

// Adds up the segments of one sum by a tree.
DEVICE float tree_of_segments(const float (*sums)[TILE][8], uint32_t segments, int row, int column) {
    float all[WARPS];
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        all[i] = i < int(segments) ? sums[i][row][column] : 0.0f;
    }
    add_up(all, segments);
    return all[0];
}

// Writes the product of a tile's row. GATED: a tile has eight rows of the gate and eight of the up
// projection, and makes `silu(gate) * up`.
template <bool GATED>
DEVICE void write(const ProductArgs &a, uint32_t to, uint32_t tile, uint32_t row, float sum, float up) {
    uint32_t number = tile * TILE + row;
    sum = a.bias ? sum + a.bias[number] : sum;
    if (GATED) {
        up = a.bias ? up + a.bias[number + TILE / 2] : up;
        sum = silu(sum) * up;
        number = tile * (TILE / 2) + row;
    }
    if (a.out) {
        a.out[uint64_t(to) * a.stride + number] = sum;
    } else {
        a.brains[uint64_t(to) * a.stride + number] = float_brain(sum);
    }
}

// With few rows of activations: N groups of eight.
template <typename Of, int N, bool GATED> DEVICE void products(const ProductArgs &a) {
    SHARED(float[WARPS][TILE][8], shared);
    uint32_t first = BLOCK_Y * 8 * N, count = *a.rows;
    if (first >= count) {
        return;
    }
    uint32_t tiles = WARPS / a.segments, all_tiles = (a.weights.rows + TILE - 1) / TILE;
    uint32_t first_tile = BLOCK_X * tiles, tile = first_tile + warp() / a.segments;
    float sums[N][4] = {};
    if (tile < all_tiles) {
        Of::add(a, tile, warp() % a.segments, first, count, sums);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        for (int i = 0; i < 4; i++) {
            Place place = Of::place(i);
            shared[warp()][place.row][place.column] = sums[n][i];
        }
        barrier();
        for (uint32_t i = THREAD; i < tiles * TILE * 8; i += THREADS) {
            uint32_t own = i / (TILE * 8), row = i % TILE, column = i / TILE % 8;
            uint32_t to = first + n * 8 + column, tile = first_tile + own;
            if (to >= count || tile >= all_tiles || (GATED && row >= TILE / 2)) {
                continue;
            }
            auto segments = shared + own * a.segments;
            float sum = tree_of_segments(segments, a.segments, row, column);
            float up = 0.0f;
            if (GATED) {
                up = tree_of_segments(segments, a.segments, row + TILE / 2, column);
            }
            write<GATED>(a, to, tile, row, sum, up);
        }
        barrier();
    }
}

// Copies to a stage `many` blocks of columns, of the tiles and the rows of activations of this block
// of threads.
template <typename Of, int ROWS>
DEVICE void copy_stage(const ProductArgs &a, Stage<Of, ROWS> &to, uint32_t first_tile, uint32_t first,
                       uint32_t count, uint32_t block, uint32_t many) {
    constexpr uint32_t SHARE = WARPS * WARP / TILES_OF_BLOCK, CHUNKS = Stage<Of, ROWS>::X_BYTES / 16;
    uint32_t blocks = a.weights.columns / Of::COLUMNS;
    uint32_t last_tile = (a.weights.rows + TILE - 1) / TILE - 1;
    uint32_t tile = THREAD / SHARE, own = THREAD % SHARE;
    uint64_t at = uint64_t(least_of(first_tile + tile, last_tile)) * blocks + block;
    auto values = static_cast<const unsigned char *>(a.weights.values) + at * Of::BYTES;
    for (uint32_t i = own; i < many * Of::BYTES / 16; i += SHARE) {
        copy_later(to.values[tile] + i * 16, values + i * 16);
    }
    auto heads = static_cast<const unsigned char *>(a.weights.heads) + at * Of::HEAD_BYTES;
    for (uint32_t i = own; i < many * Of::HEAD_BYTES / 16; i += SHARE) {
        copy_later(to.heads[tile] + i * 16, heads + i * 16);
    }
    auto x = static_cast<const unsigned char *>(a.x) + uint64_t(block) * Of::X_BYTES;
    for (uint32_t i = THREAD; i < ROWS * CHUNKS; i += WARPS * WARP) {
        uint32_t row = i / CHUNKS, chunk = i % CHUNKS;
        if (chunk < many * Of::X_BYTES / 16) {
            uint64_t from = uint64_t(least_of(first + row, count - 1)) * a.x_stride * Of::X_SIZE;
            copy_later(to.x[row] + chunk * 16, x + from + chunk * 16);
        }
    }
    to.beside.copy(a, blocks, block, many, first, count);
}

// Adds the sums of a segment to the tree: the sum of a subtree waits for that of its neighbor. After
// the last segment, `sums` has the tree's.
template <int TILES, int N>
DEVICE void add_segment(uint32_t segment, uint32_t segments, float (&sums)[TILES][N][4],
                        float (&waiting)[3][TILES][N][4]) {
    bool added = true;
#pragma unroll
    for (int level = 0; level < 3; level++) {
        if (added && 1u << level < segments) {
            added = segment >> level & 1;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                for (int n = 0; n < N; n++) {
                    for (int i = 0; i < 4; i++) {
                        float &sum = sums[t][n][i], &before = waiting[level][t][n][i];
                        before = added ? before : sum;
                        sum = added ? before + sum : 0.0f;
                    }
                }
            }
        }
    }
}

// With many rows of activations: a warp has TILES tiles and N groups of eight rows.
template <typename Of, int TILES, int N, bool GATED> DEVICE void products_of_many(const ProductArgs &a) {
    constexpr int HIGH = TILES_OF_BLOCK / TILES, ROWS = WARPS / HIGH * N * 8;
    using Own = Stage<Of, ROWS>;
    constexpr uint32_t FIT = STAGES_BYTES / sizeof(Own), STAGES = FIT < MAX_STAGES ? FIT : MAX_STAGES;
    static_assert(STAGES > 1, "a stage is read while the next one is copied");
    LARGE_SHARED(Own[STAGES], stages);
    uint32_t first = BLOCK_X * ROWS, count = *a.rows;
    if (first >= count) {
        return;
    }
    uint32_t first_tile = BLOCK_Y * TILES_OF_BLOCK;
    uint32_t share = a.weights.columns / Of::COLUMNS / a.segments;
    uint32_t in_segment = (share + Of::BLOCKS - 1) / Of::BLOCKS, end = in_segment * a.segments;
    auto blocks_of = [&](uint32_t stage) {
        return least_of(share - stage % in_segment * Of::BLOCKS, Of::BLOCKS);
    };
    auto copy = [&](uint32_t stage) {
        if (stage < end) {
            uint32_t block = stage / in_segment * share + stage % in_segment * Of::BLOCKS;
            copy_stage(a, stages[stage % STAGES], first_tile, first, count, block, blocks_of(stage));
        }
        end_copies();
    };
    for (uint32_t stage = 0; stage + 1 < STAGES; stage++) {
        copy(stage);
    }
    int tile = warp() % HIGH * TILES, rows = warp() / HIGH * N * 8;
    float sums[TILES][N][4] = {}, waiting[3][TILES][N][4] = {};
    for (uint32_t stage = 0; stage < end; stage++) {
        wait_for_copies<STAGES - 2>();
        // All have their copies, and none reads the stage that is written next.
        barrier();
        copy(stage + STAGES - 1);
        const Own &own = stages[stage % STAGES];
        Of::add_stage(own, tile, blocks_of(stage), RowsInStage<N, Own>{own, rows}, sums);
        if (stage % in_segment == in_segment - 1) {
            add_segment(stage / in_segment, a.segments, sums, waiting);
        }
    }
    // A lane has two rows of each tile, eight apart: with GATED a row of the gate and that of the up
    // projection.
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        uint32_t own = first_tile + tile + t;
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < (GATED ? 2 : 4); i++) {
                Place place = Of::place(i);
                uint32_t to = first + rows + n * 8 + place.column;
                if (to < count && own * TILE < a.weights.rows) {
                    write<GATED>(a, to, own, place.row, sums[t][n][i], GATED ? sums[t][n][i + 2] : 0);
                }
            }
        }
    }
}

#define FEW(name, Of, rows)                                                                        \
    KERNEL(name##_##rows, ProductArgs, 256) { products<Of, rows / 8, false>(a); }                  \
    KERNEL(name##_##rows##_gated, ProductArgs, 256) { products<Of, rows / 8, true>(a); }
#define MANY(KIND, name, Of, rows, TILES, N)                                                       \
    KIND(name##_##rows, ProductArgs, 256) { products_of_many<Of, TILES, N, false>(a); }            \
    KIND(name##_##rows##_gated, ProductArgs, 256) { products_of_many<Of, TILES, N, true>(a); }
#define ON_TENSOR_CORES(name, Of)                                                                  \
    FEW(name, OfTensors<Of>, 8)                                                                    \
    FEW(name, OfTensors<Of>, 16)                                                                   \
    MANY(KERNEL, name, Of, 32, 1, 2)                                                               \
    MANY(KERNEL, name, Of, 64, 1, 4)                                                               \
    MANY(LARGE_KERNEL, name, Of, 128, 2, 4)
#define OF_FLOATS(name, Of)                                                                        \
    FEW(name, Of, 8)                                                                               \
    FEW(name, Of, 16)                                                                              \
    FEW(name, Of, 32)                                                                              \
    FEW(name, Of, 64)

ON_TENSOR_CORES(products_q8_0, OfBlocks<Q8>)
ON_TENSOR_CORES(products_q4_k, OfLongBlocks<KBlock<Q4>>)
ON_TENSOR_CORES(products_q6_k, OfLongBlocks<KBlock<Q6>>)
ON_TENSOR_CORES(products_floats8, OfLongBlocks<Floats8Block>)
ON_TENSOR_CORES(products_brains, OfBlocks<Brains>)
using OfF32 = OfFloats<float, false>;
using OfBf16 = OfFloats<uint16_t, true>;
using OfF16 = OfFloats<uint16_t, false>;
OF_FLOATS(products_f32, OfF32)
OF_FLOATS(products_bf16, OfBf16)
OF_FLOATS(products_f16, OfF16)
