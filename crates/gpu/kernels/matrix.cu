// Products of a matrix with rows of activations.
//
// A warp has a tile of sixteen rows and a segment of the columns. It adds its products up in the order
// of the columns, and the segments are added by a tree: so the sums do not depend on the number of
// rows of activations, and a rank with some of the segments has a subtree.

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

// Returns the row of activations of which a lane has a part.
template <typename T> DEVICE const T *own_row(const ProductArgs &a, uint32_t first) {
    return static_cast<const T *>(a.x) + uint64_t(first + lane() / 4) * a.x_stride;
}

// Blocks whose weights a warp loads before it multiplies the first of them: memory answers late, and is
// busy only while many loads wait.
template <int N> constexpr int AHEAD = N < 4 ? 4 : N < 8 ? 2 : 1;

struct OfQ8 : Fragment {
    template <int N>
    DEVICE static void add(const ProductArgs &a, uint64_t tile, uint32_t segment, uint32_t first,
                           float (&sums)[N][4]) {
        uint32_t blocks = a.weights.columns / 32, share = blocks / a.segments;
        auto values = static_cast<const unsigned char *>(a.weights.values);
        auto heads = static_cast<const uint16_t *>(a.weights.heads);
        auto x = own_row<int8_t>(a, first) + lane() % 4 * 4;
        uint32_t eight_rows = 8 * a.x_stride;
        uint64_t first_column = first + place(0).column;
        uint32_t end = (segment + 1) * share;
        for (uint32_t begin = segment * share; begin < end; begin += AHEAD<N>) {
            Four w[AHEAD<N>];
            uint16_t d[AHEAD<N>][2];
#pragma unroll
            for (uint32_t j = 0; j < AHEAD<N>; j++) {
                if (begin + j < end) {
                    uint64_t at = tile * blocks + begin + j;
                    w[j] = load_four(values + at * Q8_BYTES + lane() * 16);
                    d[j][0] = load(heads + at * TILE + lane() / 4);
                    d[j][1] = load(heads + at * TILE + lane() / 4 + 8);
                }
            }
#pragma unroll
            for (uint32_t j = 0; j < AHEAD<N>; j++) {
                uint32_t block = begin + j;
                if (block >= end) {
                    continue;
                }
                const float *scales = a.scales + first_column * blocks + block;
#pragma unroll
                for (int n = 0; n < N; n++) {
                    auto own = x + block * 32 + n * eight_rows;
                    uint32_t b[2] = {load_word(own), load_word(own + 16)};
                    int32_t c[4] = {0, 0, 0, 0};
                    mma_s8(c, w[j].x, b);
                    for (int i = 0; i < 4; i++) {
                        float scale = load(scales + (n * 8 + i % 2) * blocks);
                        sums[n][i] = fused(whole(c[i]), half_float(d[j][i / 2]) * scale, sums[n][i]);
                    }
                }
            }
        }
    }
};

// Groups of eight rows of activations whose products with a block are counted together: with more, the
// counts would not fit in the registers beside the sums.
template <int N> constexpr int AT_ONCE = N < 4 ? N : 4;
// Parts of a block that are unrolled, so that many loads run at once.
template <int N> constexpr int UNROLLED = N < 4 ? 8 : N < 8 ? 2 : 1;

struct OfQ4K : Fragment {
    template <int N>
    DEVICE static void add(const ProductArgs &a, uint64_t tile, uint32_t segment, uint32_t first,
                           float (&sums)[N][4]) {
        constexpr int M = AT_ONCE<N>;
        uint32_t blocks = a.weights.columns / BLOCK, share = blocks / a.segments;
        auto values = static_cast<const unsigned char *>(a.weights.values) + tile * blocks * Q4_BYTES;
        auto heads = static_cast<const Q4Head *>(a.weights.heads) + tile * blocks * TILE;
        auto x = own_row<int8_t>(a, first) + lane() % 4 * 4;
        uint64_t first_column = first + place(0).column;
        uint32_t eight_rows = 8 * a.x_stride;
        for (uint32_t block = segment * share; block < (segment + 1) * share; block++) {
            const Q4Head *head = heads + block * TILE + lane() / 4;
#pragma unroll
            for (int from = 0; from < N; from += M) {
                int32_t counts[M][4] = {};
#pragma unroll(UNROLLED<N>)
                for (int part = 0; part < 8; part++) {
                    Four both = load_four(values + block * Q4_BYTES + part / 2 * 512 + lane() * 16);
                    uint32_t w[4];
                    for (int i = 0; i < 4; i++) {
                        w[i] = both.x[i] >> part % 2 * 4 & 0x0f0f0f0f;
                    }
#pragma unroll
                    for (int n = 0; n < M; n++) {
                        auto own = x + block * BLOCK + part * PART + (from + n) * eight_rows;
                        uint32_t b[2] = {load_word(own), load_word(own + 16)};
                        int32_t c[4] = {0, 0, 0, 0};
                        mma_s8(c, w, b);
                        for (int i = 0; i < 4; i++) {
                            counts[n][i] += c[i] * head[i / 2 * 8].scale(part);
                        }
                    }
                }
#pragma unroll
                for (int n = 0; n < M; n++) {
                    for (int i = 0; i < 4; i++) {
                        uint64_t column = first_column + (from + n) * 8 + i % 2;
                        Four of_x = load_four(a.sums + (column * blocks + block) * 8);
                        int32_t least = 0;
                        for (int part = 0; part < 8; part += 2) {
                            uint32_t two = head[i / 2 * 8].two_least(part);
                            least = pair_product(of_x.x[part / 2], two, least);
                        }
                        float scale = load(a.scales + column * blocks + block);
                        float &sum = sums[from + n][i];
                        sum = fused(whole(counts[n][i]), head[i / 2 * 8].d() * scale, sum);
                        sum = fused(whole(least), head[i / 2 * 8].min() * scale, sum);
                    }
                }
            }
        }
    }
};

struct OfQ6K : Fragment {
    template <int N>
    DEVICE static void add(const ProductArgs &a, uint64_t tile, uint32_t segment, uint32_t first,
                           float (&sums)[N][4]) {
        constexpr int M = AT_ONCE<N>;
        uint32_t blocks = a.weights.columns / BLOCK, share = blocks / a.segments;
        auto values = static_cast<const unsigned char *>(a.weights.values) + tile * blocks * Q6_BYTES;
        auto heads = static_cast<const Q6Head *>(a.weights.heads) + tile * blocks * TILE;
        auto x = own_row<int8_t>(a, first) + lane() % 4 * 4;
        uint64_t first_column = first + place(0).column;
        uint32_t eight_rows = 8 * a.x_stride;
        for (uint32_t block = segment * share; block < (segment + 1) * share; block++) {
            const Q6Head *head = heads + block * TILE + lane() / 4;
            auto lows = values + block * Q6_BYTES + lane() * 16;
            auto highs = values + block * Q6_BYTES + Q6_LOW_BYTES + lane() * 8;
#pragma unroll
            for (int from = 0; from < N; from += M) {
                int32_t counts[M][4] = {};
#pragma unroll(UNROLLED<N>)
                for (int part = 0; part < 8; part++) {
                    Four both = load_four(lows + part / 2 * 512);
                    Two high = load_two(highs + part / 2 * 256);
                    uint32_t w[4];
                    for (int i = 0; i < 4; i++) {
                        uint32_t upper = high.x[i % 2] >> (part % 2 * 4 + i / 2 * 2) & 0x03030303;
                        w[i] = minus_32((both.x[i] >> part % 2 * 4 & 0x0f0f0f0f) | upper << 4);
                    }
#pragma unroll
                    for (int n = 0; n < M; n++) {
                        auto own = x + block * BLOCK + part * PART + (from + n) * eight_rows;
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            int32_t c[4] = {0, 0, 0, 0};
                            mma_s8_half(c, w[half * 2], w[half * 2 + 1], load_word(own + half * 16));
                            for (int i = 0; i < 4; i++) {
                                counts[n][i] += c[i] * head[i / 2 * 8].scale(2 * part + half);
                            }
                        }
                    }
                }
#pragma unroll
                for (int n = 0; n < M; n++) {
                    for (int i = 0; i < 4; i++) {
                        uint64_t column = first_column + (from + n) * 8 + i % 2;
                        float d = head[i / 2 * 8].d() * load(a.scales + column * blocks + block);
                        sums[from + n][i] = fused(whole(counts[n][i]), d, sums[from + n][i]);
                    }
                }
            }
        }
    }
};

// bf16 with bf16 activations: the fast arithmetic, whose bits are the hardware's.
struct OfBrains : Fragment {
    template <int N>
    DEVICE static void add(const ProductArgs &a, uint64_t tile, uint32_t segment, uint32_t first,
                           float (&sums)[N][4]) {
        uint32_t blocks = a.weights.columns / 16, share = blocks / a.segments;
        auto values = static_cast<const unsigned char *>(a.weights.values);
        auto x = own_row<uint16_t>(a, first) + lane() % 4 * 2;
        uint32_t eight_rows = 8 * a.x_stride;
        uint32_t end = (segment + 1) * share;
        for (uint32_t begin = segment * share; begin < end; begin += AHEAD<N>) {
            Four w[AHEAD<N>];
#pragma unroll
            for (uint32_t j = 0; j < AHEAD<N>; j++) {
                if (begin + j < end) {
                    w[j] = load_four(values + (tile * blocks + begin + j) * BRAIN_BYTES + lane() * 16);
                }
            }
#pragma unroll
            for (uint32_t j = 0; j < AHEAD<N>; j++) {
                if (begin + j >= end) {
                    continue;
                }
#pragma unroll
                for (int n = 0; n < N; n++) {
                    auto own = x + (begin + j) * 16 + n * eight_rows;
                    uint32_t b[2] = {load_word(own), load_word(own + 8)};
                    mma_bf16(sums[n], w[j].x, b);
                }
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
                           float (&sums)[N][4]) {
        constexpr uint32_t MANY = TOGETHER<T>;
        // With eight columns in each, more would not fit in the registers.
        constexpr uint32_t LOADED = sizeof(T) < 4 && N < 4 ? 2 : AHEAD<N>;
        uint32_t groups = (a.weights.columns + MANY - 1) / MANY;
        uint32_t share = a.weights.columns / a.segments;
        uint32_t begin = segment * share, end = begin + share;
        auto values = static_cast<const unsigned char *>(a.weights.values);
        auto x = static_cast<const float *>(a.x);
        uint32_t last = (end + MANY - 1) / MANY;
        for (uint32_t from = begin / MANY; from < last; from += LOADED) {
            Four four[LOADED];
#pragma unroll
            for (uint32_t j = 0; j < LOADED; j++) {
                if (from + j < last) {
                    uint64_t at = (tile * groups + from + j) * TILE + lane() % 16;
                    four[j] = load_four(values + at * 16);
                }
            }
#pragma unroll
            for (uint32_t k = 0; k < LOADED * MANY; k++) {
                uint32_t column = from * MANY + k, j = k / MANY, own = k % MANY;
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
                        uint64_t row = first + n * 8 + lane() / 16 * 4 + i;
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

// GATED: a tile has eight rows of the gate and eight of the up projection, and makes `silu(gate) * up`.
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
        Of::add(a, tile, warp() % a.segments, first, sums);
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
            uint32_t number = tile * TILE + row;
            sum = a.bias ? sum + a.bias[number] : sum;
            if (GATED) {
                float up = tree_of_segments(segments, a.segments, row + TILE / 2, column);
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
        barrier();
    }
}

#define PRODUCTS(name, Of)                                                                         \
    KERNEL(name##_8, ProductArgs, 256) { products<Of, 1, false>(a); }                              \
    KERNEL(name##_16, ProductArgs, 256) { products<Of, 2, false>(a); }                             \
    KERNEL(name##_32, ProductArgs, 256) { products<Of, 4, false>(a); }                             \
    KERNEL(name##_64, ProductArgs, 256) { products<Of, 8, false>(a); }                             \
    KERNEL(name##_8_gated, ProductArgs, 256) { products<Of, 1, true>(a); }                         \
    KERNEL(name##_16_gated, ProductArgs, 256) { products<Of, 2, true>(a); }                        \
    KERNEL(name##_32_gated, ProductArgs, 256) { products<Of, 4, true>(a); }                        \
    KERNEL(name##_64_gated, ProductArgs, 256) { products<Of, 8, true>(a); }

PRODUCTS(products_q8_0, OfQ8)
PRODUCTS(products_q4_k, OfQ4K)
PRODUCTS(products_q6_k, OfQ6K)
PRODUCTS(products_brains, OfBrains)
using OfF32 = OfFloats<float, false>;
using OfBf16 = OfFloats<uint16_t, true>;
using OfF16 = OfFloats<uint16_t, false>;
PRODUCTS(products_f32, OfF32)
PRODUCTS(products_bf16, OfBf16)
PRODUCTS(products_f16, OfF16)
