// Arguments of the kernels. `src/args.rs` has the same structs.

#pragma once

#include <stdint.h>

// Largest number of ranks of a model.
constexpr int RANKS = 8;
// Positions in a page of the KV cache.
constexpr int PAGE = 32;
// Positions whose scores are computed together. Splits begin at multiples of it.
constexpr int SPLIT = 256;

// Most shared memory for the stages of products with many rows: what all GPUs since compute capability
// 8.0 give to a block, less what the system reserves.
constexpr uint32_t STAGES_BYTES = 98 << 10;
constexpr uint32_t MAX_STAGES = 4;

// Forms in which a row of activations is written, each where its pointer is not null. Rows are
// `stride` numbers apart in `floats`, `columns` numbers in the others.
struct Forms {
    float *floats;
    uint16_t *brains;
    // Blocks of 32: values and scales.
    int8_t *values32;
    float *scales32;
    // Blocks of 256: values, scales, and the sum of each 32 values.
    int8_t *values256;
    float *scales256;
    int16_t *sums256;
    uint32_t columns;
    uint32_t stride;
};

// Weights in the order of the fragments of `mma` (see `weights.h`).
struct Weights {
    const void *values;
    const void *heads;
    uint32_t rows;
    uint32_t columns;
    uint32_t format;
    uint32_t reserved;
};

struct EmbedArgs {
    Weights weights;
    const uint32_t *rows;
    const uint32_t *tokens;
    float *out;
    uint32_t first_token;
    uint32_t stride;
};

struct NormArgs {
    // Residual stream, `[rows, stride]`.
    float *stream;
    const uint32_t *rows;
    // Rows to normalize, or null for all.
    const uint32_t *picked;
    // Sums to add first, `[rows, stride]` of each rank; no rank adds none.
    const float *partials[RANKS];
    // Added to the sums, or null.
    const float *bias;
    const float *weight;
    Forms out;
    uint32_t ranks;
    uint32_t stride;
    // True if the sums are the stream, not added to it.
    uint32_t replaces;
    float eps;
};

struct FormArgs {
    const float *x;
    const uint32_t *rows;
    Forms out;
    uint32_t stride;
    uint32_t reserved;
};

struct ProductArgs {
    Weights weights;
    // Activations in the form that the format needs; `sums` are for blocks of 256.
    const void *x;
    const float *scales;
    const int16_t *sums;
    const uint32_t *rows;
    const float *bias;
    float *out;
    uint16_t *brains;
    uint32_t segments;
    uint32_t stride;
    // Distance of a row's numbers in `x`.
    uint32_t x_stride;
    uint32_t reserved;
};

// Keys and values of a layer: `[page, head, dim, 32]` and `[page, head, 32, dim]`.
struct Cache {
    void *keys;
    void *values;
    uint32_t heads;
    uint32_t dim;
};

struct PlaceArgs {
    // Queries, keys and values of each row, `stride` apart.
    float *x;
    const uint32_t *rows;
    const uint32_t *positions;
    // Page of each row's position.
    const uint32_t *pages;
    const float *cos;
    const float *sin;
    // Norms of the heads of queries and keys, or null.
    const float *query_norm;
    const float *key_norm;
    Cache cache;
    uint32_t queries;
    uint32_t stride;
    float eps;
    uint32_t reserved;
};

// Rows of a sequence that a block attends for: `count` rows from `row` on, for the splits from
// `first` to `last`. With one split of several, the results go to the partial results `partial`,
// `partial + pieces`, and so on.
struct Item {
    uint32_t row;
    uint32_t count;
    // Offset of the sequence's block table.
    uint32_t table;
    uint32_t first;
    uint32_t last;
    uint32_t partial;
    uint32_t pieces;
    uint32_t reserved;
};

struct AttendArgs {
    const float *queries;
    const uint32_t *counts;
    const Item *items;
    const uint32_t *positions;
    const uint32_t *tables;
    Cache cache;
    // Attended, `[rows, queries, dim]`, of items that have all splits of their rows.
    float *out;
    // Of each partial result and query head: largest score, sum of weights, and the mix.
    float *heads;
    float *mixes;
    uint32_t group;
    uint32_t stride;
    uint32_t window;
    float scale;
};

// Partial results of a row, in the order of their splits.
struct Merge {
    uint32_t row;
    uint32_t partial;
    uint32_t pieces;
    uint32_t reserved;
};

struct MergeArgs {
    const uint32_t *counts;
    const Merge *merges;
    const float *heads;
    const float *mixes;
    float *out;
    uint32_t queries;
    uint32_t dim;
};

// Rows of a tensor, as a file has them, and the tiles that they become.
struct PackArgs {
    const void *source;
    void *values;
    void *heads;
    uint32_t rows;
    uint32_t columns;
    uint32_t row_bytes;
    uint32_t reserved;
};

// Rendezvous of the ranks of a model.
struct MeetArgs {
    // Flags of each rank, in its memory: one for each rank that it waits for.
    uint32_t *flags[RANKS];
    // Number of the step.
    const uint32_t *step;
    // Set if a rank does not come within the limit.
    uint32_t *lost;
    uint64_t limit_nanoseconds;
    uint32_t rank;
    uint32_t ranks;
    // Number of this rendezvous in the step, and how many a step has.
    uint32_t number;
    uint32_t in_step;
};

// Copy of a page in all layers.
struct CopyArgs {
    unsigned char *keys;
    unsigned char *values;
    uint64_t layer_bytes;
    uint32_t page_bytes;
    uint32_t from;
    uint32_t to;
    uint32_t reserved;
};

// Tokens of a row that a block of threads samples from.
constexpr uint32_t CHUNK = 4096;
// Steps of a unit of the temperature, and number of steps down to where weights are zero.
constexpr float FINENESS = 64.0f;
constexpr uint32_t STEPS = 46 * 64 + 1;

// Change of a token's logit.
struct Change {
    uint32_t token;
    float bias;
    // Occurrences in the reply, or `UNPENALIZED` if no penalty applies.
    uint32_t count;
};
constexpr uint32_t UNPENALIZED = ~0u;

// Token to sample. `mask` and `marks` are offsets of words of a bit for each token, or `NOWHERE`.
struct SampleRow {
    uint64_t noise;
    // Distance of the least logit that min-p keeps from the largest, negative infinity for none.
    double min_p;
    float temperature;
    float per_temperature;
    float top_p;
    uint32_t top_k;
    float repetition;
    float frequency;
    float presence;
    // Index of the row of logits.
    uint32_t row;
    // Tokens that may be chosen.
    uint32_t mask;
    // Tokens of `changes`, and those of the prompt to which the repetition penalty applies.
    uint32_t marks;
    // Changes in the order of their tokens, one for each.
    uint32_t first_change;
    uint32_t changes;
};
constexpr uint32_t NOWHERE = ~0u;

// Sampled token, and its logit before all changes.
struct Choice {
    uint32_t token;
    float logit;
};
// Instead of a token: none may be chosen, or the CPU must sample the row.
constexpr uint32_t NO_TOKEN = ~0u;
constexpr uint32_t NOT_HERE = ~0u - 1;

struct SampleArgs {
    const float *logits;
    const SampleRow *rows;
    const uint32_t *words;
    const Change *changes;
    // Of each row and chunk: the first rank, the best score, and its token.
    uint64_t *ranks;
    double *scores;
    uint32_t *tokens;
    // Of each row: the mass of each step, and the last rank that top-k and top-p keep.
    double *masses;
    uint64_t *lasts;
    Choice *choices;
    uint32_t vocab;
    uint32_t stride;
    uint32_t chunks;
    uint32_t count;
};

// Row of logits, and how many of its likeliest tokens are wanted.
struct LikeliestRow {
    uint32_t row;
    uint32_t top;
};

struct LikeliestArgs {
    const float *logits;
    const LikeliestRow *rows;
    // Of each row: the largest logit, and the sum of weights relative to it.
    float *maxima;
    double *totals;
    // Likeliest tokens, `most` of each row.
    Choice *top;
    uint32_t vocab;
    uint32_t stride;
    uint32_t most;
    uint32_t reserved;
};

// Random bits, which are replaced by the bits of their noise.
struct NoiseArgs {
    uint64_t *numbers;
    uint64_t count;
};
