// Attention over the paged KV cache.
//
// Positions are processed in splits of 256 that begin at multiples of 256 for every row. The results
// of the splits are merged in ascending order, by one block or by the kernel `merge`: the bits are the
// same, those of `crates/kernels/src/attention.rs`.

#include "weights.h"

// Numbers of queries that a block keeps.
constexpr int KEPT_QUERIES = 2048;
constexpr int MOST_QUERIES = 16;

struct AttendShared {
    float queries[KEPT_QUERIES];
    float mixed[KEPT_QUERIES];
    float shares[MOST_QUERIES][SPLIT];
    // Of each query: visible positions, largest score and sum of weights so far, factors of a merge.
    uint32_t first[MOST_QUERIES];
    uint32_t last[MOST_QUERIES];
    float largest[MOST_QUERIES];
    float total[MOST_QUERIES];
    float before[MOST_QUERIES];
    float now[MOST_QUERIES];
    // Whether the split has a visible position, and whether one before it had.
    uint32_t sees[MOST_QUERIES];
    uint32_t begun[MOST_QUERIES];
};

// Merges the results of a split into those of the splits before it, and returns both factors.
DEVICE void merge_split(float &largest, float &total, float of_split, float sum, float &before,
                        float &now) {
    float top = of_split > largest ? of_split : largest;
    before = exponential(largest - top);
    now = exponential(of_split - top);
    largest = top;
    total = fused(total, before, sum * now);
}

// Q queries: those of a group of heads, for each of a few rows.
template <typename E, int Q> DEVICE void attend_item(const AttendArgs &a, const Item &item, uint32_t number) {
    SHARED(AttendShared, s);
    constexpr int TOGETHER = Q < 4 ? Q : 4;
    uint32_t dim = a.cache.dim, heads = a.cache.heads, group = a.group;
    uint32_t at_once = group < Q ? group : Q, parts = (group + at_once - 1) / at_once;
    uint32_t head = number / parts, first_query = number % parts * at_once;
    uint32_t own_heads = group - first_query < at_once ? group - first_query : at_once;
    uint32_t queries = own_heads * item.count;
    auto keys = static_cast<const E *>(a.cache.keys);
    auto values = static_cast<const E *>(a.cache.values);
    const uint32_t *table = a.tables + item.table;

    barrier();
    for (uint32_t i = THREAD; i < Q * dim; i += THREADS) {
        uint32_t q = i / dim;
        float x = 0.0f;
        if (q < queries) {
            uint64_t row = item.row + q / own_heads;
            uint32_t query = head * group + first_query + q % own_heads;
            x = a.queries[row * a.stride + uint64_t(query) * dim + i % dim];
        }
        s.queries[i] = x;
    }
    if (THREAD < Q) {
        uint32_t q = THREAD;
        // A query that does not exist sees no position.
        uint32_t first = 1, last = 0;
        if (q < queries) {
            last = a.positions[item.row + q / own_heads];
            first = a.window > 0 && last + 1 > a.window ? last + 1 - a.window : 0;
        }
        s.first[q] = first;
        s.last[q] = last;
        s.begun[q] = 0;
    }
    barrier();

    // Positions that any query sees.
    uint32_t newest = s.last[queries - 1], oldest = s.first[0];
    for (uint32_t split = item.first; split <= item.last; split++) {
        // Scores: a thread has one position.
        uint32_t position = split * SPLIT + THREAD;
        bool seen = position >= oldest && position <= newest;
        float sums[Q] = {};
        if (seen) {
            uint64_t page = table[position / PAGE];
            const E *key = keys + (page * heads + head) * dim * PAGE + position % PAGE;
#pragma unroll 8
            for (uint32_t k = 0; k < dim; k++) {
                float x = widened(key[k * PAGE]);
#pragma unroll
                for (int q = 0; q < Q; q++) {
                    sums[q] = fused(x, s.queries[q * dim + k], sums[q]);
                }
            }
        }
#pragma unroll
        for (int q = 0; q < Q; q++) {
            bool visible = position >= s.first[q] && position <= s.last[q];
            s.shares[q][THREAD] = visible ? sums[q] * a.scale : -INFINITY;
        }
        barrier();

        // Weights: a warp has one query, a lane each 32nd position.
        for (uint32_t q = warp(); q < queries; q += THREADS / WARP) {
            float largest = -INFINITY;
            for (int page = 0; page < SPLIT / PAGE; page++) {
                float score = s.shares[q][page * PAGE + lane()];
                largest = score > largest ? score : largest;
            }
            for (int mask = 1; mask < WARP; mask *= 2) {
                float other = from_lane_xor(largest, mask);
                largest = other > largest ? other : largest;
            }
            float sum = 0.0f;
            for (int page = 0; page < SPLIT / PAGE; page++) {
                float score = s.shares[q][page * PAGE + lane()];
                float share = score == -INFINITY ? 0.0f : exponential(score - largest);
                s.shares[q][page * PAGE + lane()] = share;
                sum = sum + share;
            }
            sum = tree_of_lanes(sum, WARP);
            if (lane() == 0) {
                bool sees = s.first[q] / SPLIT <= split && split <= s.last[q] / SPLIT;
                s.sees[q] = sees;
                if (sees && s.begun[q]) {
                    merge_split(s.largest[q], s.total[q], largest, sum, s.before[q], s.now[q]);
                } else if (sees) {
                    s.largest[q] = largest;
                    s.total[q] = sum;
                }
            }
        }
        barrier();

        // Mix: a thread has one dimension of a few queries.
        uint32_t begin = split * SPLIT > oldest ? split * SPLIT : oldest;
        uint32_t end = split * SPLIT + SPLIT - 1 < newest ? split * SPLIT + SPLIT - 1 : newest;
        for (uint32_t i = THREAD; i < dim * (Q / TOGETHER); i += THREADS) {
            uint32_t d = i % dim, from = i / dim * TOGETHER;
            float mix[TOGETHER] = {};
#pragma unroll 4
            for (uint32_t position = begin; position <= end; position++) {
                uint64_t page = table[position / PAGE];
                const E *value = values + ((page * heads + head) * PAGE + position % PAGE) * dim;
                float x = widened(value[d]);
#pragma unroll
                for (int j = 0; j < TOGETHER; j++) {
                    bool visible = position >= s.first[from + j] && position <= s.last[from + j];
                    float more = fused(x, s.shares[from + j][position % SPLIT], mix[j]);
                    mix[j] = visible ? more : mix[j];
                }
            }
            for (int j = 0; j < TOGETHER; j++) {
                uint32_t q = from + j;
                if (q < queries && s.sees[q]) {
                    float *own = &s.mixed[q * dim + d];
                    *own = s.begun[q] ? fused(*own, s.before[q], mix[j] * s.now[q]) : mix[j];
                }
            }
        }
        barrier();
        if (THREAD < queries && s.sees[THREAD]) {
            s.begun[THREAD] = 1;
        }
        barrier();
    }

    uint32_t all_queries = heads * group;
    for (uint32_t i = THREAD; i < queries * dim; i += THREADS) {
        uint32_t q = i / dim, d = i % dim, in_row = q / own_heads;
        uint32_t query = head * group + first_query + q % own_heads;
        if (!s.begun[q]) {
            continue;
        }
        if (item.pieces == 0) {
            uint64_t at = (uint64_t(item.row + in_row) * all_queries + query) * dim + d;
            a.out[at] = divided(s.mixed[i], s.total[q]);
        } else {
            uint64_t partial = item.partial + uint64_t(in_row) * item.pieces;
            a.mixes[(partial * all_queries + query) * dim + d] = s.mixed[i];
            if (d == 0) {
                a.heads[(partial * all_queries + query) * 2] = s.largest[q];
                a.heads[(partial * all_queries + query) * 2 + 1] = s.total[q];
            }
        }
    }
}

// A fixed number of blocks takes the items in turn, so that a launch does not depend on their number.
template <typename E, int Q> DEVICE void attend(const AttendArgs &a) {
    uint32_t at_once = a.group < Q ? a.group : Q, parts = (a.group + at_once - 1) / at_once;
    uint32_t each = a.cache.heads * parts, all = *a.counts * each;
    for (uint32_t i = BLOCK_X; i < all; i += BLOCKS_X) {
        attend_item<E, Q>(a, a.items[i / each], i % each);
    }
}

#define ATTEND(name, E)                                                                            \
    KERNEL(name##_1, AttendArgs, 256) { attend<E, 1>(a); }                                         \
    KERNEL(name##_2, AttendArgs, 256) { attend<E, 2>(a); }                                         \
    KERNEL(name##_4, AttendArgs, 256) { attend<E, 4>(a); }                                         \
    KERNEL(name##_8, AttendArgs, 256) { attend<E, 8>(a); }                                         \
    KERNEL(name##_16, AttendArgs, 256) { attend<E, 16>(a); }
ATTEND(attend_f32, float)
ATTEND(attend_bf16, uint16_t)

// Merges the partial results of a row's splits. `BLOCK_Y` is the query head.
KERNEL(merge, MergeArgs, 128) {
    if (BLOCK_X >= *a.counts) {
        return;
    }
    Merge own = a.merges[BLOCK_X];
    uint32_t query = BLOCK_Y;
    for (uint32_t d = THREAD; d < a.dim; d += THREADS) {
        uint64_t at = uint64_t(own.partial) * a.queries + query;
        float largest = a.heads[at * 2], total = a.heads[at * 2 + 1], mixed = a.mixes[at * a.dim + d];
        for (uint32_t piece = 1; piece < own.pieces; piece++) {
            at += a.queries;
            float before, now;
            merge_split(largest, total, a.heads[at * 2], a.heads[at * 2 + 1], before, now);
            mixed = fused(mixed, before, a.mixes[at * a.dim + d] * now);
        }
        a.out[(uint64_t(own.row) * a.queries + query) * a.dim + d] = divided(mixed, total);
    }
}
