// Sampling, with the tokens of the CPU's: `sample` of `crates/handlers/llama`.
//
// A choice does not depend on the order in which tokens are looked at: the best score wins, of equal
// scores the smallest token. Sums whose order matters are added by one thread in the CPU's order.

#include "sample.h"

DEVICE uint32_t chunk_end(const SampleArgs &a) {
    uint32_t end = (BLOCK_X + 1) * CHUNK;
    return end < a.vocab ? end : a.vocab;
}

DEVICE bool is_few(const SampleArgs &a, const SampleRow &row) {
    return row.top_k > 0 && row.top_k < a.vocab;
}
DEVICE bool is_nucleus(const SampleArgs &a, const SampleRow &row) {
    return row.temperature != 0.0f && row.top_p < 1.0f && !is_few(a, row);
}
DEVICE bool is_cut(const SampleArgs &a, const SampleRow &row) {
    return row.temperature != 0.0f && (row.top_p < 1.0f || is_few(a, row));
}

// Finds the likeliest token of each chunk, and clears the masses.
KERNEL(sample_rank, SampleArgs, 256) {
    SHARED(uint64_t[WARP], room);
    const SampleRow row = a.rows[BLOCK_Y];
    Adjusted logits(a, row);
    uint64_t least = least_of_thread(logits, BLOCK_X * CHUNK, chunk_end(a));
    least = least_of_block(least, room);
    if (THREAD == 0) {
        a.ranks[uint64_t(BLOCK_Y) * a.chunks + BLOCK_X] = least;
    }
    if (BLOCK_X == 0 && is_nucleus(a, row)) {
        for (uint32_t i = THREAD; i < STEPS; i += THREADS) {
            a.masses[uint64_t(BLOCK_Y) * STEPS + i] = 0.0;
        }
    }
}

// Returns the rank of a row's likeliest token.
DEVICE uint64_t least_of_row(const SampleArgs &a, uint32_t row) {
    uint64_t least = NO_RANK;
    for (uint32_t i = 0; i < a.chunks; i++) {
        uint64_t rank = a.ranks[uint64_t(row) * a.chunks + i];
        least = rank < least ? rank : least;
    }
    return least;
}

// Adds up the weights of each step, for top-p.
//
// The sums are exact, so that their order does not matter: weights of a step are f32 that differ by
// at most a factor of 1.02, and a f64 has 29 bits more.
KERNEL(sample_masses, SampleArgs, 256) {
    SHARED(double[STEPS], masses);
    const SampleRow row = a.rows[BLOCK_Y];
    uint64_t first = least_of_row(a, BLOCK_Y);
    if (!is_nucleus(a, row) || first == NO_RANK) {
        return;
    }
    for (uint32_t i = THREAD; i < STEPS; i += THREADS) {
        masses[i] = 0.0;
    }
    barrier();
    Adjusted logits(a, row);
    Softmax softmax{rank_logit(first), row.per_temperature};
    uint32_t end = chunk_end(a);
    for (uint32_t token = BLOCK_X * CHUNK + THREAD; token < end; token += THREADS) {
        float logit = logits.at(token), weight = softmax.weight(logit);
        if (weight > 0.0f) {
            add_atomically(&masses[softmax.step(logit)], double(weight));
        }
    }
    barrier();
    for (uint32_t i = THREAD; i < STEPS; i += THREADS) {
        if (masses[i] > 0.0) {
            add_atomically(&a.masses[uint64_t(BLOCK_Y) * STEPS + i], masses[i]);
        }
    }
}

// Returns the first of the sorted ranks at which `held` plus their weights reaches `enough`, or the
// last rank with a weight.
DEVICE uint64_t last_held(
    const List &list, const double *weights, uint32_t count, double held, double enough) {
    uint64_t last = list.ranks[0];
    for (uint32_t i = 0; i < count; i++) {
        if (held >= enough || weights[i] == 0.0) {
            break;
        }
        held += weights[i];
        last = list.ranks[i];
    }
    return last;
}

struct Nucleus {
    double held;
    double enough;
    uint32_t end;
};

// Finds the step in which the nucleus ends, and the mass before it.
DEVICE Nucleus nucleus_of(const double *masses, float top_p) {
    double all = 0.0;
    for (uint32_t i = 0; i < STEPS; i++) {
        all += masses[i];
    }
    Nucleus nucleus{0.0, double(top_p) * all, 0};
    for (uint32_t i = 0; i < STEPS; i++) {
        if (masses[i] > 0.0) {
            nucleus.end = i;
            if (nucleus.held + masses[i] >= nucleus.enough) {
                break;
            }
            nucleus.held += masses[i];
        }
    }
    return nucleus;
}

// Finds the last rank that top-k and top-p leave of a row.
KERNEL(sample_cut, SampleArgs, CUT_THREADS) {
    SHARED(List, list);
    // Masses of steps, and then weights of the list.
    SHARED(double[STEPS], masses);
    SHARED(Nucleus, nucleus);
    const SampleRow row = a.rows[BLOCK_X];
    uint64_t first = least_of_row(a, BLOCK_X);
    if (!is_cut(a, row) || first == NO_RANK) {
        return;
    }
    Adjusted logits(a, row);
    Softmax softmax{rank_logit(first), row.per_temperature};
    uint32_t count;
    bool few = is_few(a, row);
    if (few) {
        count = sort_likeliest(logits, a.vocab, row.top_k, list);
    } else {
        for (uint32_t i = THREAD; i < STEPS; i += THREADS) {
            masses[i] = a.masses[uint64_t(BLOCK_X) * STEPS + i];
        }
        list.clear();
        if (THREAD == 0) {
            nucleus = nucleus_of(masses, row.top_p);
        }
        barrier();
        for (uint32_t token = THREAD; token < a.vocab; token += THREADS) {
            float logit = logits.at(token);
            if (softmax.weight(logit) > 0.0f && softmax.step(logit) == nucleus.end) {
                list.put(rank_of(logit, token));
            }
        }
        barrier();
        count = list.count > LISTED ? NOT_HERE : list.count;
        if (count != NOT_HERE) {
            list.sort();
        }
    }
    if (count == NOT_HERE) {
        if (THREAD == 0) {
            a.lasts[BLOCK_X] = UNKNOWN;
        }
        return;
    }
    for (uint32_t i = THREAD; i < count; i += THREADS) {
        masses[i] = double(softmax.weight(rank_logit(list.ranks[i])));
    }
    barrier();
    if (THREAD > 0) {
        return;
    }
    uint64_t last = list.ranks[count - 1];
    if (few && row.top_p < 1.0f) {
        double all = 0.0;
        for (uint32_t i = 0; i < count; i++) {
            all += masses[i];
        }
        last = last_held(list, masses, count, 0.0, double(row.top_p) * all);
    } else if (!few) {
        last = last_held(list, masses, count, nucleus.held, nucleus.enough);
    }
    a.lasts[BLOCK_X] = last;
}

struct Scored {
    double score;
    uint32_t token;
};

DEVICE Scored better(Scored a, Scored b) {
    return b.score > a.score || (b.score == a.score && b.token < a.token) ? b : a;
}

// Returns the last rank that min-p keeps.
DEVICE uint64_t min_p_last(float max, double min_p) {
    double exact = double(max) + min_p;
    float floor = float(exact);
    if (double(floor) < exact) {
        // Rounded up, so that comparisons in f32 have the same result as in f64.
        uint32_t bits = float_bits(floor);
        bits = (bits & 0x7fffffff) == 0 ? 1 : bits >> 31 == 0 ? bits + 1 : bits - 1;
        floor = bits_float(bits);
    }
    return rank_of(floor > ANY ? floor : ANY, ~0u);
}

// Finds the best score of each chunk among the tokens that the cuts leave.
KERNEL(sample_draw, SampleArgs, 256) {
    SHARED(Scored[WARP], room);
    const SampleRow row = a.rows[BLOCK_Y];
    uint64_t first = least_of_row(a, BLOCK_Y);
    if (row.temperature == 0.0f || first == NO_RANK) {
        return;
    }
    uint64_t last = is_cut(a, row) ? a.lasts[BLOCK_Y] : NO_RANK;
    uint64_t other = min_p_last(rank_logit(first), row.min_p);
    last = other < last ? other : last;
    Adjusted logits(a, row);
    double temperature = double(row.temperature);
    Scored best{-bits_double(uint64_t(0x7ff) << 52), NO_TOKEN};
    auto consider = [&](float logit, uint32_t token) {
        uint64_t bits = noise_bits(row.noise, token);
        if (double(logit) + temperature * gumbel_bound(bits) < best.score) {
            return;
        }
        best = better(best, Scored{double(logit) + temperature * gumbel(bits), token});
    };
    if (first <= last) {
        // An early good score saves the logarithms of the rest.
        consider(rank_logit(first), uint32_t(first));
        uint32_t end = chunk_end(a);
        for (uint32_t token = BLOCK_X * CHUNK + THREAD; token < end; token += THREADS) {
            float logit = logits.at(token);
            // What is no number may pass this, but its score is never better.
            if (rank_of(logit, token) <= last) {
                consider(logit, token);
            }
        }
    }
    for (int mask = 1; mask < WARP; mask *= 2) {
        double score = from_lane_xor(best.score, mask);
        best = better(best, Scored{score, from_lane_xor(best.token, mask)});
    }
    if (lane() == 0) {
        room[warp()] = best;
    }
    barrier();
    if (THREAD > 0) {
        return;
    }
    for (uint32_t i = 0; i < THREADS / WARP; i++) {
        best = better(best, room[i]);
    }
    a.scores[uint64_t(BLOCK_Y) * a.chunks + BLOCK_X] = best.score;
    a.tokens[uint64_t(BLOCK_Y) * a.chunks + BLOCK_X] = best.token;
}

// Chooses the token of each row.
KERNEL(sample_choose, SampleArgs, 32) {
    uint32_t at = BLOCK_X * THREADS + THREAD;
    if (at >= a.count) {
        return;
    }
    const SampleRow row = a.rows[at];
    uint64_t first = least_of_row(a, at);
    uint32_t token = uint32_t(first);
    if (first == NO_RANK) {
        token = NO_TOKEN;
    } else if (is_cut(a, row) && a.lasts[at] == UNKNOWN) {
        token = NOT_HERE;
    } else if (row.temperature != 0.0f) {
        Scored best{-bits_double(uint64_t(0x7ff) << 52), NO_TOKEN};
        for (uint32_t i = 0; i < a.chunks; i++) {
            uint64_t from = uint64_t(at) * a.chunks + i;
            best = better(best, Scored{a.scores[from], a.tokens[from]});
        }
        token = best.token;
    }
    float logit = token < a.vocab ? a.logits[uint64_t(row.row) * a.stride + token] : 0.0f;
    a.choices[at] = Choice{token, logit};
}

// Finds the likeliest tokens of raw logits, and the sum of all weights, in eight lanes by token.
KERNEL(sample_likeliest, LikeliestArgs, CUT_THREADS) {
    SHARED(List, list);
    SHARED(uint64_t[WARP], room);
    SHARED(float[CUT_THREADS], weights);
    SHARED(double[8], lanes);
    const LikeliestRow row = a.rows[BLOCK_X];
    Raw logits{a.logits + uint64_t(row.row) * a.stride};
    uint64_t first = least_of_block(least_of_thread(logits, 0, a.vocab), room);
    if (THREAD == 0) {
        a.maxima[BLOCK_X] = first == NO_RANK ? -bits_float(0x7f800000) : rank_logit(first);
    }
    if (first == NO_RANK) {
        return;
    }
    Softmax softmax{rank_logit(first), 1.0f};
    double sum = 0.0;
    for (uint32_t from = 0; from < a.vocab; from += THREADS) {
        uint32_t token = from + THREAD;
        weights[THREAD] = token < a.vocab ? softmax.weight(logits.at(token)) : 0.0f;
        barrier();
        if (THREAD < 8) {
            for (uint32_t i = THREAD; i < THREADS; i += 8) {
                sum += double(weights[i]);
            }
        }
        barrier();
    }
    if (THREAD < 8) {
        lanes[THREAD] = sum;
    }
    barrier();
    if (THREAD == 0) {
        double low = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
        double high = (lanes[4] + lanes[5]) + (lanes[6] + lanes[7]);
        a.totals[BLOCK_X] = low + high;
    }
    if (row.top == 0) {
        return;
    }
    uint32_t count = sort_likeliest(logits, a.vocab, row.top, list);
    for (uint32_t i = THREAD; i < row.top; i += THREADS) {
        uint32_t token = count == NOT_HERE ? NOT_HERE : i < count ? uint32_t(list.ranks[i]) : NO_TOKEN;
        float logit = token < a.vocab ? logits.at(token) : 0.0f;
        a.top[uint64_t(BLOCK_X) * a.most + i] = Choice{token, logit};
    }
}

// Computes noise alone: for tests of its bits.
KERNEL(sample_noise, NoiseArgs, 256) {
    uint64_t at = uint64_t(BLOCK_X) * THREADS + THREAD;
    if (at < a.count) {
        a.numbers[at] = double_bits(gumbel(a.numbers[at]));
    }
}
