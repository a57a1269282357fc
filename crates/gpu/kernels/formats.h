// Formats of weights: products of a warp with a block of columns, by tensor cores.
//
// The weights and the rows of activations are in memory, or in a stage that the threads of a block have
// copied to shared memory.

#pragma once

#include "weights.h"

constexpr int WARPS = 8;

// A lane's 4 sums of 16 x 8: its tile's row and its row of activations.
struct Place {
    int row;
    int column;
};

struct Fragment {
    DEVICE static Place place(int i) {
        return Place{lane() / 4 + i / 2 * 8, lane() % 4 * 2 + i % 2};
    }
};

// N groups of eight rows of activations in memory, from row `first` on. Rows from `count` on are the
// last one: their sums are not used.
template <int N> struct RowsInMemory {
    const unsigned char *rows[N];
    const float *scales[N][2];
    const int16_t *sums[N][2];

    DEVICE RowsInMemory(const ProductArgs &a, uint32_t blocks, uint32_t bytes, uint32_t first,
                        uint32_t count) {
        for (int n = 0; n < N; n++) {
            uint32_t own = least_of(first + n * 8 + lane() / 4, count - 1);
            rows[n] = static_cast<const unsigned char *>(a.x) + uint64_t(own) * bytes + lane() % 4 * 4;
            for (int i = 0; i < 2; i++) {
                uint64_t column = least_of(first + n * 8 + lane() % 4 * 2 + i, count - 1);
                scales[n][i] = a.scales + column * blocks;
                sums[n][i] = a.sums + column * blocks * 8;
            }
        }
    }

    DEVICE uint32_t word(int n, uint32_t at) const { return load_word(rows[n] + at); }
    DEVICE float scale(int n, int i, uint32_t block) const { return load(scales[n][i] + block); }
    DEVICE Four parts(int n, int i, uint32_t block) const {
        return load_four(sums[n][i] + block * 8);
    }
};

// Tiles of weights of a block of threads with stages.
constexpr int TILES_OF_BLOCK = 4;

// Columns of a segment, as the threads of a block copy them to shared memory: weights, and ROWS rows
// of activations. The gaps between the rows let eight of them be read at once.
template <typename Of, int ROWS> struct alignas(16) Stage {
    static constexpr int X_BYTES = Of::BLOCKS * Of::X_BYTES;
    unsigned char values[TILES_OF_BLOCK][Of::BLOCKS * Of::BYTES];
    // C++ has no arrays without elements.
    unsigned char heads[TILES_OF_BLOCK][Of::HEAD_BYTES > 0 ? Of::BLOCKS * Of::HEAD_BYTES : 16];
    unsigned char x[ROWS][X_BYTES + 16];
    typename Of::template Beside<ROWS> beside;
};

// N groups of eight rows of a stage.
template <int N, typename S> struct RowsInStage {
    const S &stage;
    int first;

    DEVICE uint32_t word(int n, uint32_t at) const {
        auto own = stage.x[first + n * 8 + lane() / 4] + lane() % 4 * 4;
        return *reinterpret_cast<const uint32_t *>(own + at);
    }
    DEVICE int column(int n, int i) const { return first + n * 8 + lane() % 4 * 2 + i; }
    DEVICE float scale(int n, int i, uint32_t block) const {
        return stage.beside.scales[block][column(n, i)];
    }
    DEVICE Four parts(int n, int i, uint32_t) const { return stage.beside.parts[column(n, i)]; }
};

// Scales and sums of the activations of a stage, where the format has them.
template <int BLOCKS, int ROWS> struct ScalesBeside {
    float scales[BLOCKS][ROWS];

    DEVICE void copy(const ProductArgs &a, uint32_t blocks, uint32_t block, uint32_t many,
                     uint32_t first, uint32_t count) {
        for (int i = THREAD; i < ROWS * BLOCKS; i += WARPS * WARP) {
            uint32_t row = i / BLOCKS, own = i % BLOCKS;
            if (own < many) {
                uint64_t from = least_of(first + row, count - 1);
                copy_word_later(&scales[own][row], a.scales + from * blocks + block + own);
            }
        }
    }
};
template <int ROWS> struct PartsBeside {
    float scales[1][ROWS];
    Four parts[ROWS];

    DEVICE void copy(const ProductArgs &a, uint32_t blocks, uint32_t block, uint32_t, uint32_t first,
                     uint32_t count) {
        for (int row = THREAD; row < ROWS; row += WARPS * WARP) {
            uint64_t from = least_of(first + row, count - 1);
            copy_word_later(&scales[0][row], a.scales + from * blocks + block);
            copy_later(&parts[row], a.sums + (from * blocks + block) * 8);
        }
    }
};
struct NothingBeside {
    DEVICE void copy(const ProductArgs &, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t) {}
};

// A block of Q8_0: 32 columns.
struct Q8 : Fragment {
    static constexpr int COLUMNS = 32, BYTES = Q8_BYTES, HEAD_BYTES = TILE * 2;
    static constexpr int X_SIZE = 1, X_BYTES = 32, BLOCKS = 4;
    template <int ROWS> using Beside = ScalesBeside<BLOCKS, ROWS>;

    Four w;
    uint16_t d[2];

    template <typename From> DEVICE void read(const unsigned char *values, const void *heads) {
        auto own = static_cast<const uint16_t *>(heads) + lane() / 4;
        w = From::four(values + lane() * 16);
        d[0] = From::read(own);
        d[1] = From::read(own + 8);
    }

    template <int TILES, int N, typename X>
    DEVICE static void multiply(const Q8 (&all)[TILES], const X &x, uint32_t block,
                                float (&sums)[TILES][N][4]) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t b[2] = {x.word(n, block * 32), x.word(n, block * 32 + 16)};
            float scale[2] = {x.scale(n, 0, block), x.scale(n, 1, block)};
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                int32_t c[4] = {COUNTED_ZERO, COUNTED_ZERO, COUNTED_ZERO, COUNTED_ZERO};
                mma_s8(c, all[t].w.x, b);
                for (int i = 0; i < 4; i++) {
                    float d = half_float(all[t].d[i / 2]) * scale[i % 2];
                    sums[t][n][i] = fused(counted(c[i]), d, sums[t][n][i]);
                }
            }
        }
    }
};

// Sixteen columns of bf16 with bf16 activations: the fast arithmetic, whose bits are the hardware's.
struct Brains : Fragment {
    static constexpr int COLUMNS = 16, BYTES = BRAIN_BYTES, HEAD_BYTES = 0;
    static constexpr int X_SIZE = 2, X_BYTES = 32, BLOCKS = 4;
    template <int ROWS> using Beside = NothingBeside;

    Four w;

    template <typename From> DEVICE void read(const unsigned char *values, const void *) {
        w = From::four(values + lane() * 16);
    }

    template <int TILES, int N, typename X>
    DEVICE static void multiply(const Brains (&all)[TILES], const X &x, uint32_t block,
                                float (&sums)[TILES][N][4]) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t b[2] = {x.word(n, block * 32), x.word(n, block * 32 + 16)};
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                mma_bf16(sums[t][n], all[t].w.x, b);
            }
        }
    }
};

// Formats with blocks so small that a lane loads its part of one at once.
template <typename B> struct OfBlocks : B {
    // Blocks whose weights a warp loads before it multiplies the first of them: memory answers late,
    // and is busy only while many loads wait.
    static constexpr uint32_t AHEAD = 4;

    template <int N>
    DEVICE static void add(const ProductArgs &a, uint64_t tile, uint32_t begin, uint32_t end,
                           const RowsInMemory<N> &x, float (&sums)[1][N][4]) {
        uint64_t first = tile * (a.weights.columns / B::COLUMNS);
        auto values = static_cast<const unsigned char *>(a.weights.values) + first * B::BYTES;
        auto heads = static_cast<const unsigned char *>(a.weights.heads) + first * B::HEAD_BYTES;
        for (; begin < end; begin += AHEAD) {
            B loaded[AHEAD][1];
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; j++) {
                if (begin + j < end) {
                    loaded[j][0].template read<FromMemory>(values + (begin + j) * B::BYTES,
                                                           heads + (begin + j) * B::HEAD_BYTES);
                }
            }
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; j++) {
                if (begin + j < end) {
                    B::multiply(loaded[j], x, begin + j, sums);
                }
            }
        }
    }

    template <int TILES, int N, typename S>
    DEVICE static void add_stage(const S &stage, int tile, uint32_t many, const RowsInStage<N, S> &x,
                                 float (&sums)[TILES][N][4]) {
#pragma unroll(FromStage::UNROLLED)
        for (int j = 0; j < B::BLOCKS; j++) {
            if (j < int(many)) {
                B own[TILES];
                for (int t = 0; t < TILES; t++) {
                    own[t].template read<FromStage>(stage.values[tile + t] + j * B::BYTES,
                                                    stage.heads[tile + t] + j * B::HEAD_BYTES);
                }
                B::multiply(own, x, j, sums);
            }
        }
    }
};

// What the K-quants do not have in common: parts of 32 columns, of which a lane loads two at once.
struct Q4 {
    static constexpr int BYTES = Q4_BYTES;
    using Head = Q4Head;
    template <int ROWS> using Beside = PartsBeside<ROWS>;

    Four both;

    template <typename From> DEVICE void read(const unsigned char *values, int part) {
        both = From::four(values + part / 2 * 512 + lane() * 16);
    }
    DEVICE void words(int part, uint32_t (&w)[4]) const {
        for (int i = 0; i < 4; i++) {
            w[i] = both.x[i] >> part % 2 * 4 & 0x0f0f0f0f;
        }
    }

    // Adds the products of a part with eight rows of activations, times the scales.
    template <typename From>
    DEVICE static void count(const uint32_t (&w)[4], const uint32_t (&b)[2], const Head *head, int part,
                             int32_t (&counts)[4]) {
        int32_t c[4] = {0, 0, 0, 0};
        mma_s8(c, w, b);
        for (int i = 0; i < 4; i++) {
            counts[i] += c[i] * head[i / 2 * 8].scale<From>(part);
        }
    }

    template <typename From, typename X>
    DEVICE static void finish(const Head *head, const X &x, int n, uint32_t block,
                              const int32_t (&counts)[4], float (&sums)[4]) {
        for (int i = 0; i < 4; i++) {
            const Head &own = head[i / 2 * 8];
            Four of_x = x.parts(n, i % 2, block);
            int32_t least = 0;
            for (int part = 0; part < 8; part += 2) {
                least = pair_product(of_x.x[part / 2], own.two_least<From>(part), least);
            }
            float scale = x.scale(n, i % 2, block);
            sums[i] = fused(whole(counts[i]), own.d<From>() * scale, sums[i]);
            sums[i] = fused(whole(least), own.min<From>() * scale, sums[i]);
        }
    }
};
struct Q6 {
    static constexpr int BYTES = Q6_BYTES;
    using Head = Q6Head;
    template <int ROWS> using Beside = ScalesBeside<1, ROWS>;

    Four both;
    Two high;

    template <typename From> DEVICE void read(const unsigned char *values, int part) {
        both = From::four(values + part / 2 * 512 + lane() * 16);
        high = From::two(values + Q6_LOW_BYTES + part / 2 * 256 + lane() * 8);
    }
    DEVICE void words(int part, uint32_t (&w)[4]) const {
        for (int i = 0; i < 4; i++) {
            uint32_t upper = high.x[i % 2] >> (part % 2 * 4 + i / 2 * 2) & 0x03030303;
            w[i] = minus_32((both.x[i] >> part % 2 * 4 & 0x0f0f0f0f) | upper << 4);
        }
    }

    template <typename From>
    DEVICE static void count(const uint32_t (&w)[4], const uint32_t (&b)[2], const Head *head, int part,
                             int32_t (&counts)[4]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int32_t c[4] = {0, 0, 0, 0};
            mma_s8_half(c, w[half * 2], w[half * 2 + 1], b[half]);
            for (int i = 0; i < 4; i++) {
                counts[i] += c[i] * head[i / 2 * 8].scale<From>(2 * part + half);
            }
        }
    }

    template <typename From, typename X>
    DEVICE static void finish(const Head *head, const X &x, int n, uint32_t block,
                              const int32_t (&counts)[4], float (&sums)[4]) {
        for (int i = 0; i < 4; i++) {
            float d = head[i / 2 * 8].d<From>() * x.scale(n, i % 2, block);
            sums[i] = fused(whole(counts[i]), d, sums[i]);
        }
    }
};

// A block of a K-quant: 256 columns, whose products are whole numbers.
template <typename K> struct KBlock : Fragment {
    using Head = typename K::Head;
    static constexpr int COLUMNS = BLOCK, BYTES = K::BYTES, HEAD_BYTES = TILE * sizeof(Head);
    static constexpr int X_SIZE = 1, X_BYTES = BLOCK, BLOCKS = 1;
    template <int ROWS> using Beside = typename K::template Beside<ROWS>;

    // Adds the products with a block. From memory all its parts are unrolled, so that many loads run
    // at once.
    template <typename From, int TILES, int N, typename X>
    DEVICE static void add_block(const unsigned char *const (&values)[TILES],
                                 const Head *const (&heads)[TILES], const X &x, uint32_t block,
                                 float (&sums)[TILES][N][4]) {
        int32_t counts[TILES][N][4] = {};
        K own[TILES];
#pragma unroll(From::UNROLLED)
        for (int part = 0; part < BLOCK / PART; part++) {
            uint32_t w[TILES][4];
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                if (part % 2 == 0) {
                    own[t].template read<From>(values[t], part);
                }
                own[t].words(part, w[t]);
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                uint32_t at = block * BLOCK + part * PART;
                uint32_t b[2] = {x.word(n, at), x.word(n, at + 16)};
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    K::template count<From>(w[t], b, heads[t], part, counts[t][n]);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            for (int n = 0; n < N; n++) {
                K::template finish<From>(heads[t], x, n, block, counts[t][n], sums[t][n]);
            }
        }
    }
};

// A block of eight-bit floats with bf16 activations: 128 columns, whose sum is multiplied by a scale.
struct Floats8Block : Fragment {
    using Head = float;
    static constexpr int COLUMNS = FLOATS8_COLUMNS, BYTES = FLOATS8_BYTES, HEAD_BYTES = TILE * 4;
    static constexpr int X_SIZE = 2, X_BYTES = COLUMNS * 2, BLOCKS = 1;
    template <int ROWS> using Beside = NothingBeside;

    template <typename From, int TILES, int N, typename X>
    DEVICE static void add_block(const unsigned char *const (&values)[TILES],
                                 const Head *const (&heads)[TILES], const X &x, uint32_t block,
                                 float (&sums)[TILES][N][4]) {
        float own[TILES][N][4] = {};
#pragma unroll
        for (int part = 0; part < COLUMNS / PART; part++) {
            Four loaded[TILES];
            for (int t = 0; t < TILES; t++) {
                loaded[t] = From::four(values[t] + part * 512 + lane() * 16);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t w[TILES][4];
                for (int t = 0; t < TILES; t++) {
                    for (int i = 0; i < 4; i++) {
                        w[t][i] = brains_of_floats8(loaded[t].x[half * 2 + i % 2] >> i / 2 * 16);
                    }
                }
#pragma unroll
                for (int n = 0; n < N; n++) {
                    uint32_t at = block * X_BYTES + part * PART * 2 + half * PART;
                    uint32_t b[2] = {x.word(n, at), x.word(n, at + 16)};
#pragma unroll
                    for (int t = 0; t < TILES; t++) {
                        mma_bf16(own[t][n], w[t], b);
                    }
                }
            }
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            for (int n = 0; n < N; n++) {
                for (int i = 0; i < 4; i++) {
                    float scale = From::read(heads[t] + i / 2 * 8);
                    sums[t][n][i] = fused(own[t][n][i], scale, sums[t][n][i]);
                }
            }
        }
    }
};

// Formats with blocks so long that a warp loads the next one when it has multiplied one.
template <typename B> struct OfLongBlocks : B {
    using Head = typename B::Head;

    template <int N>
    DEVICE static void add(const ProductArgs &a, uint64_t tile, uint32_t begin, uint32_t end,
                           const RowsInMemory<N> &x, float (&sums)[1][N][4]) {
        uint64_t first = tile * (a.weights.columns / B::COLUMNS);
        auto values = static_cast<const unsigned char *>(a.weights.values);
        auto heads = static_cast<const Head *>(a.weights.heads) + lane() / 4;
        for (; begin < end; begin++) {
            const unsigned char *own[1] = {values + (first + begin) * B::BYTES};
            const Head *head[1] = {heads + (first + begin) * TILE};
            B::template add_block<FromMemory>(own, head, x, begin, sums);
        }
    }

    template <int TILES, int N, typename S>
    DEVICE static void add_stage(const S &stage, int tile, uint32_t, const RowsInStage<N, S> &x,
                                 float (&sums)[TILES][N][4]) {
        const unsigned char *own[TILES];
        const Head *heads[TILES];
        for (int t = 0; t < TILES; t++) {
            own[t] = stage.values[tile + t];
            heads[t] = reinterpret_cast<const Head *>(stage.heads[tile + t]) + lane() / 4;
        }
        B::template add_block<FromStage>(own, heads, x, 0, sums);
    }
};
