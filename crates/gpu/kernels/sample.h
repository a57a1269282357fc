// Parts of sampling: ranks, weights, noise, and the logits after all changes.

#pragma once

#include "args.h"
#include "log.h"
#include "math.h"

// Smallest logit with which a token can be chosen.
constexpr float ANY = -3.40282347e38f;
// Rank that no token has. As the last rank that is kept: all are.
constexpr uint64_t NO_RANK = ~uint64_t(0);
// Last rank of a row that the CPU must sample: only what is no number has it.
constexpr uint64_t UNKNOWN = 0;

// Ranks that a block sorts.
constexpr uint32_t LISTED = 2048;
constexpr int CUT_THREADS = 512;

// Returns the rank of a token: larger logits come first, and smaller tokens among equals.
DEVICE uint64_t rank_of(float logit, uint32_t token) {
    // This turns negative zero into zero.
    uint32_t bits = float_bits(logit + 0.0f);
    uint32_t ascending = bits >> 31 == 0 ? bits | 1u << 31 : ~bits;
    return uint64_t(~ascending) << 32 | token;
}
DEVICE float rank_logit(uint64_t rank) {
    uint32_t ascending = ~uint32_t(rank >> 32);
    return bits_float(ascending >> 31 == 1 ? ascending & ~(1u << 31) : ~ascending);
}

// Softmax weights relative to the largest logit, whose weight is 1.
struct Softmax {
    float max;
    float per_temperature;

    // Returns the distance below the largest logit, from -46 to 0.
    DEVICE float below(float logit) const {
        float below = (logit - max) * per_temperature;
        below = below > -46.0f ? below : -46.0f;
        return logit == max ? 0.0f : below;
    }
    DEVICE float weight(float logit) const {
        float x = below(logit);
        float shifted = x * 1.44269504088896340736f + ROUND;
        float n = shifted - ROUND;
        float r = (x - n * 0.6933594f) - n * -2.1219444e-4f;
        float power = 1.0f / 5040.0f;
        power = power * r + 1.0f / 720.0f;
        power = power * r + 1.0f / 120.0f;
        power = power * r + 1.0f / 24.0f;
        power = power * r + 1.0f / 6.0f;
        power = power * r + 1.0f / 2.0f;
        power = power * r + 1.0f;
        power = power * r + 1.0f;
        float y = power * bits_float((float_bits(shifted) << 23) + float_bits(1.0f));
        return x > -46.0f ? y : 0.0f;
    }
    // Returns the distance below the largest logit in steps.
    DEVICE uint32_t step(float logit) const {
        return float_bits(below(logit) * -FINENESS + 8388608.0f) & 0xfff;
    }
};

// Logits as a file's last product gives them.
struct Raw {
    const float *logits;
    DEVICE float at(uint32_t token) const { return logits[token]; }
};

// Logits after biases, penalties and the mask, computed on demand. The raw ones stay as they are.
struct Adjusted {
    const float *logits;
    const uint32_t *mask;
    const uint32_t *marks;
    const Change *changes;
    const SampleRow &row;

    DEVICE Adjusted(const SampleArgs &a, const SampleRow &row)
        : logits(a.logits + uint64_t(row.row) * a.stride),
          mask(row.mask == NOWHERE ? nullptr : a.words + row.mask),
          marks(row.marks == NOWHERE ? nullptr : a.words + row.marks),
          changes(a.changes + row.first_change), row(row) {}

    DEVICE float penalized(float logit, uint32_t count) const {
        float repeated =
            logit > 0.0f ? divided(logit, row.repetition) : logit * row.repetition;
        return repeated - row.frequency * float(count) - (count > 0 ? row.presence : 0.0f);
    }
    DEVICE float changed(float logit, uint32_t token) const {
        uint32_t low = 0, high = row.changes;
        while (low < high) {
            uint32_t middle = (low + high) / 2;
            if (changes[middle].token < token) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if (low == row.changes || changes[low].token != token) {
            return penalized(logit, 0);
        }
        logit = logit + changes[low].bias;
        uint32_t count = changes[low].count;
        return count == UNPENALIZED ? logit : penalized(logit, count);
    }
    DEVICE float at(uint32_t token) const {
        if (mask && !(mask[token / 32] >> token % 32 & 1)) {
            return -bits_float(0x7f800000);
        }
        bool marked = marks && marks[token / 32] >> token % 32 & 1;
        return marked ? changed(logits[token], token) : logits[token];
    }
};

// Returns the least of the threads' ranks to all threads. `room` has a number for each warp, and is used
// once.
DEVICE uint64_t least_of_block(uint64_t rank, uint64_t *room) {
    for (int mask = 1; mask < WARP; mask *= 2) {
        uint64_t other = from_lane_xor(rank, mask);
        rank = other < rank ? other : rank;
    }
    if (lane() == 0) {
        room[warp()] = rank;
    }
    barrier();
    for (uint32_t i = 0; i < THREADS / WARP; i++) {
        rank = room[i] < rank ? room[i] : rank;
    }
    return rank;
}

// Returns the first rank of the thread's tokens: one of `THREADS`, from `first` to before `end`.
template <typename Logits>
DEVICE uint64_t least_of_thread(const Logits &logits, uint32_t first, uint32_t end) {
    uint64_t least = NO_RANK;
    for (uint32_t token = first + THREAD; token < end; token += THREADS) {
        float logit = logits.at(token);
        uint64_t rank = rank_of(logit, token);
        least = logit >= ANY && rank < least ? rank : least;
    }
    return least;
}

// Ranks that a block gathers and sorts.
struct List {
    uint64_t ranks[LISTED];
    // Number of ranks that were put, which may be more than there is room for.
    uint32_t count;

    // Empties the list, which is new or sorted.
    DEVICE void clear() {
        if (THREAD == 0) {
            count = 0;
        }
        barrier();
    }
    DEVICE void put(uint64_t rank) {
        uint32_t at = add_atomically(&count, 1u);
        if (at < LISTED) {
            ranks[at] = rank;
        }
    }
    // Sorts by Batcher's bitonic network.
    DEVICE void sort() {
        barrier();
        uint32_t size = 1;
        while (size < count) {
            size *= 2;
        }
        for (uint32_t i = count + THREAD; i < size; i += THREADS) {
            ranks[i] = NO_RANK;
        }
        barrier();
        for (uint32_t run = 2; run <= size; run *= 2) {
            for (uint32_t apart = run / 2; apart > 0; apart /= 2) {
                for (uint32_t i = THREAD; i < size; i += THREADS) {
                    uint32_t other = i ^ apart;
                    if (other > i && (ranks[i] > ranks[other]) == ((i & run) == 0)) {
                        uint64_t kept = ranks[i];
                        ranks[i] = ranks[other];
                        ranks[other] = kept;
                    }
                }
                barrier();
            }
        }
    }
};

// Sorts the first `k` ranks of a row into the list. Returns how many there are, or `NOT_HERE` if k is
// larger than the number of threads, or if the list has no room for all candidates.
template <typename Logits>
DEVICE uint32_t sort_likeliest(const Logits &logits, uint32_t vocab, uint32_t k, List &list) {
    if (k > THREADS) {
        return NOT_HERE;
    }
    // At least k tokens come up to the k-th of the threads' first ranks.
    list.clear();
    list.put(least_of_thread(logits, 0, vocab));
    list.sort();
    uint64_t bound = list.ranks[k - 1];
    list.clear();
    for (uint32_t token = THREAD; token < vocab; token += THREADS) {
        float logit = logits.at(token);
        uint64_t rank = rank_of(logit, token);
        if (logit >= ANY && rank <= bound) {
            list.put(rank);
        }
    }
    barrier();
    if (list.count > LISTED) {
        return NOT_HERE;
    }
    list.sort();
    return list.count < k ? list.count : k;
}

// Returns the noise bits of a token: SplitMix64 with the constants of Stafford's variant 13.
DEVICE uint64_t noise_bits(uint64_t state, uint32_t token) {
    uint64_t z = state + (uint64_t(token) + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

constexpr int GUMBEL_BITS = 52;

// Returns a standard Gumbel variate from the upper bits.
DEVICE double gumbel(uint64_t bits) {
    double uniform = (double(bits >> (64 - GUMBEL_BITS)) + 0.5) * 2.220446049250313e-16;
    return -logarithm(-logarithm(uniform));
}
// Returns an upper bound of it, which takes no logarithm.
DEVICE double gumbel_bound(uint64_t bits) {
    int ones = leading_zeros(~bits);
    ones = ones < GUMBEL_BITS ? ones : GUMBEL_BITS;
    return double(ones + 1) * 0.693147180559945309417 + 1e-9;
}
