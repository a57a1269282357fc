// Operations on rows of the residual stream.

#include "weights.h"

// Writes a row in each wanted form. `at(i)` is the row's number i, computed on demand.
template <typename At> DEVICE void write_forms(const Forms &out, uint32_t row, At at) {
    uint32_t columns = out.columns;
    if (out.floats) {
        for (uint32_t i = THREAD; i < columns; i += THREADS) {
            out.floats[uint64_t(row) * out.stride + i] = at(i);
        }
    }
    if (out.brains) {
        for (uint32_t i = THREAD; i < columns; i += THREADS) {
            out.brains[uint64_t(row) * columns + i] = float_brain(at(i));
        }
    }
    uint32_t warps = THREADS / WARP;
    if (out.values32) {
        for (uint32_t block = warp(); block < columns / 32; block += warps) {
            float x = at(block * 32 + lane());
            uint32_t most = float_bits(x) & 0x7fffffff;
            for (int mask = 1; mask < WARP; mask *= 2) {
                uint32_t other = from_lane_xor(most, mask);
                most = other > most ? other : most;
            }
            Steps steps = steps_of(most);
            out.values32[uint64_t(row) * columns + block * 32 + lane()] = step_of(x, steps);
            if (lane() == 0) {
                out.scales32[uint64_t(row) * (columns / 32) + block] = steps.scale;
            }
        }
    }
    if (out.values256) {
        for (uint32_t block = warp(); block < columns / BLOCK; block += warps) {
            float x[8];
            uint32_t most = 0;
            for (int part = 0; part < 8; part++) {
                x[part] = at(block * BLOCK + part * PART + lane());
                uint32_t bits = float_bits(x[part]) & 0x7fffffff;
                most = bits > most ? bits : most;
            }
            for (int mask = 1; mask < WARP; mask *= 2) {
                uint32_t other = from_lane_xor(most, mask);
                most = other > most ? other : most;
            }
            Steps steps = steps_of(most);
            for (int part = 0; part < 8; part++) {
                int8_t value = step_of(x[part], steps);
                uint64_t at = uint64_t(row) * columns + block * BLOCK + part * PART + lane();
                out.values256[at] = value;
                int32_t sum = value;
                for (int mask = 1; mask < WARP; mask *= 2) {
                    sum += from_lane_xor(sum, mask);
                }
                if (lane() == 0) {
                    uint64_t at = (uint64_t(row) * (columns / BLOCK) + block) * 8 + part;
                    out.sums256[at] = int16_t(sum);
                }
            }
            if (lane() == 0) {
                out.scales256[uint64_t(row) * (columns / BLOCK) + block] = steps.scale;
            }
        }
    }
}

// Returns the factor of an RMS norm on the first lanes of the first warp. All its lanes must call it.
DEVICE float norm_scale(const float *x, uint32_t width, float eps) {
    float sum = 0.0f;
    if (lane() < 16) {
        for (uint32_t i = lane(); i < width; i += 16) {
            sum = fused(x[i], x[i], sum);
        }
    }
    sum = tree_of_lanes(sum, 16);
    return divided(1.0f, root(divided(sum, float(width)) + eps));
}

// Embeddings of the tokens of a rank, and zeros for other tokens.
KERNEL(embed, EmbedArgs, 256) {
    uint32_t row = BLOCK_X;
    if (row >= *a.rows) {
        return;
    }
    uint32_t own = a.tokens[row] - a.first_token;
    for (uint32_t i = THREAD; i < a.weights.columns; i += THREADS) {
        float x = own < a.weights.rows ? weight_at(a.weights, own, i) : 0.0f;
        a.out[uint64_t(row) * a.stride + i] = x;
    }
}

// Adds the partial sums of all ranks, by a tree in the order of the ranks.
DEVICE float sum_of_ranks(const NormArgs &a, uint64_t at) {
    float sums[RANKS];
#pragma unroll
    for (int rank = 0; rank < RANKS; rank++) {
        sums[rank] = rank < int(a.ranks) ? a.partials[rank][at] : 0.0f;
    }
    add_up(sums, a.ranks);
    return sums[0];
}

constexpr uint32_t KEPT = 8192;

// Adds to the residual stream, and writes its RMS norm in the forms that products need.
KERNEL(rms_norm, NormArgs, 256) {
    SHARED(float[KEPT], kept);
    SHARED(float, factor);
    if (BLOCK_X >= *a.rows) {
        return;
    }
    uint32_t row = a.picked ? a.picked[BLOCK_X] : BLOCK_X, width = a.out.columns;
    float *x = a.stream + uint64_t(row) * a.stride;
    for (uint32_t i = THREAD; i < width; i += THREADS) {
        float number = x[i];
        if (a.ranks > 0) {
            float sum = sum_of_ranks(a, uint64_t(row) * a.stride + i);
            sum = a.bias ? sum + a.bias[i] : sum;
            number = a.replaces ? sum : number + sum;
            x[i] = number;
        }
        if (width <= KEPT) {
            kept[i] = number;
        }
    }
    barrier();
    const float *numbers = width <= KEPT ? kept : x;
    if (warp() == 0) {
        float scale = norm_scale(numbers, width, a.eps);
        if (lane() == 0) {
            factor = scale;
        }
    }
    barrier();
    float scale = factor;
    const float *weight = a.weight;
    write_forms(a.out, BLOCK_X, [=](uint32_t i) { return numbers[i] * scale * weight[i]; });
}

// Writes rows in the forms that products need.
KERNEL(form, FormArgs, 256) {
    if (BLOCK_X >= *a.rows) {
        return;
    }
    const float *x = a.x + uint64_t(BLOCK_X) * a.stride;
    write_forms(a.out, BLOCK_X, [=](uint32_t i) { return x[i]; });
}

constexpr int WIDEST_HEAD = 512;

// Norms of the heads, rotary embedding, and the keys and values of a row into their page.
template <typename E> DEVICE void place_rows(const PlaceArgs &a) {
    SHARED(float[WIDEST_HEAD], head);
    SHARED(float, factor);
    uint32_t row = BLOCK_X, number = BLOCK_Y;
    if (row >= *a.rows) {
        return;
    }
    uint32_t dim = a.cache.dim, heads = a.cache.heads, position = a.positions[row];
    float *x = a.x + uint64_t(row) * a.stride + uint64_t(number) * dim;
    bool is_query = number < a.queries, is_value = number >= a.queries + heads;
    for (uint32_t i = THREAD; i < dim; i += THREADS) {
        head[i] = x[i];
    }
    barrier();
    const float *weight = is_query ? a.query_norm : a.key_norm;
    if (weight && !is_value) {
        if (warp() == 0) {
            float scale = norm_scale(head, dim, a.eps);
            if (lane() == 0) {
                factor = scale;
            }
        }
        barrier();
        for (uint32_t i = THREAD; i < dim; i += THREADS) {
            head[i] = head[i] * factor * weight[i];
        }
        barrier();
    }
    if (!is_value) {
        uint32_t half = dim / 2;
        for (uint32_t i = THREAD; i < half; i += THREADS) {
            float first = head[i], second = head[half + i];
            float cos = a.cos[uint64_t(position) * half + i];
            float sin = a.sin[uint64_t(position) * half + i];
            head[i] = fused(first, cos, -(second * sin));
            head[half + i] = fused(second, cos, first * sin);
        }
        barrier();
    }
    if (is_query) {
        for (uint32_t i = THREAD; i < dim; i += THREADS) {
            x[i] = head[i];
        }
        return;
    }
    uint32_t own = (number - a.queries) % heads, in_page = position % PAGE;
    uint64_t start = (uint64_t(a.pages[row]) * heads + own) * dim * PAGE;
    for (uint32_t i = THREAD; i < dim; i += THREADS) {
        if (is_value) {
            narrow(head[i], static_cast<E *>(a.cache.values) + start + in_page * dim + i);
        } else {
            narrow(head[i], static_cast<E *>(a.cache.keys) + start + i * PAGE + in_page);
        }
    }
}
KERNEL(place_f32, PlaceArgs, 128) { place_rows<float>(a); }
KERNEL(place_bf16, PlaceArgs, 128) { place_rows<uint16_t>(a); }

// Copies a page in all layers. A row of blocks copies the keys, a second one the values.
KERNEL(copy_page, CopyArgs, 256) {
    unsigned char *all = (BLOCK_Y == 0 ? a.keys : a.values) + BLOCK_X * a.layer_bytes;
    auto from = reinterpret_cast<const uint32_t *>(all + uint64_t(a.from) * a.page_bytes);
    auto to = reinterpret_cast<uint32_t *>(all + uint64_t(a.to) * a.page_bytes);
    for (uint32_t i = THREAD; i < a.page_bytes / 4; i += THREADS) {
        to[i] = from[i];
    }
}
