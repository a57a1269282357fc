// Emulator of a GPU's threads on one thread of a CPU: a fiber for each thread of a block.
//
// Blocks run one after the other. A fiber runs until it waits for others, at a barrier or for a value
// of another lane. `order` permutes the fibers, so that a missing barrier shows as another result.

#pragma once

#include <math.h>
#include <string.h>

#define DEVICE inline

namespace emulator {

struct Entry {
    Entry(const char *name, void (*body)(const void *), uint32_t bytes, uint32_t threads);
    const char *name;
    void (*body)(const void *);
    uint32_t bytes;
    uint32_t threads;
    const Entry *next;
};

// Registers of a warp that its lanes exchange. Two sets alternate: who writes the next one has
// waited for all lanes, which have read the last but one.
struct Exchange {
    alignas(16) unsigned char bytes[2][2048];
    uint32_t arrived;
    uint32_t generation;
};

struct Block {
    uint32_t thread;
    uint32_t threads;
    uint32_t block[2];
    uint32_t blocks[2];
    Exchange *warps;
    // Shared memory in use, and of how many variables the running fiber has asked.
    unsigned char *shared;
};
extern __thread Block block __attribute__((tls_model("initial-exec")));

void barrier();
// Waits until each lane of the warp is here.
void meet();
void pause();
uint64_t nanoseconds();
unsigned char *shared(const void *variable, uint32_t bytes);
// Fails if a launch gives more or fewer bytes of shared memory.
void need_shared(uint32_t bytes);
// Copies when the thread waits, so that a copy without a wait shows.
void copy_later(void *to, const void *from, uint32_t bytes);
void end_copies();
// Copies all groups but the last `but`.
void wait_for_copies(uint32_t but);

// Memory of the running warp that its lanes write before `meet` and read after it.
inline unsigned char *exchanged() {
    Exchange &own = block.warps[block.thread / 32];
    return own.bytes[own.generation % 2];
}

} // namespace emulator

#define KERNEL(name, Args, threads)                                                                \
    static void name##_body(const Args &a);                                                        \
    static void name##_run(const void *args) {                                                     \
        Args own;                                                                                  \
        memcpy(&own, args, sizeof own);                                                            \
        name##_body(own);                                                                          \
    }                                                                                              \
    static const emulator::Entry name##_entry(#name, name##_run, sizeof(Args), threads);           \
    static void name##_body(const Args &a)
#define LARGE_KERNEL(name, Args, threads) KERNEL(name, Args, threads)
#define SHARED(Type, name)                                                                         \
    static const char name##_variable = 0;                                                         \
    using name##_type = Type;                                                                      \
    name##_type &name =                                                                            \
        *reinterpret_cast<name##_type *>(emulator::shared(&name##_variable, sizeof(name##_type)))
#define LARGE_SHARED(Type, name)                                                                   \
    SHARED(Type, name);                                                                            \
    emulator::need_shared(sizeof(name##_type))

#define THREAD emulator::block.thread
#define THREADS emulator::block.threads
#define BLOCK_X emulator::block.block[0]
#define BLOCK_Y emulator::block.block[1]
#define BLOCKS_X emulator::block.blocks[0]

inline void barrier() { emulator::barrier(); }
inline void pause() { emulator::pause(); }
inline uint64_t nanoseconds() { return emulator::nanoseconds(); }

template <typename T> inline T from_lane_xor(T x, int mask) {
    unsigned char *all = emulator::exchanged();
    uint32_t lane = THREAD % 32;
    memcpy(all + lane * sizeof(T), &x, sizeof(T));
    emulator::meet();
    T other;
    memcpy(&other, all + (lane ^ mask) * sizeof(T), sizeof(T));
    return other;
}

inline float fused(float a, float b, float c) { return fmaf(a, b, c); }
inline float divided(float a, float b) { return a / b; }
inline float root(float x) { return sqrtf(x); }
inline float bits_float(uint32_t x) {
    float y;
    memcpy(&y, &x, 4);
    return y;
}
inline uint32_t float_bits(float x) {
    uint32_t y;
    memcpy(&y, &x, 4);
    return y;
}
inline float whole(int32_t x) { return float(x); }
// Products that need no rounding.
inline uint32_t brains_times(uint32_t a, uint32_t b) {
    uint32_t low = float_bits(bits_float(a << 16) * bits_float(b << 16)) >> 16;
    return low | float_bits(bits_float(a & 0xffff0000) * bits_float(b & 0xffff0000));
}
inline int32_t pair_product(uint32_t a, uint32_t b, int32_t c) {
    return c + int16_t(a) * int8_t(b) + int16_t(a >> 16) * int8_t(b >> 8);
}
inline double bits_double(uint64_t x) {
    double y;
    memcpy(&y, &x, 8);
    return y;
}
inline uint64_t double_bits(double x) {
    uint64_t y;
    memcpy(&y, &x, 8);
    return y;
}
inline int leading_zeros(uint64_t x) { return x == 0 ? 64 : __builtin_clzll(x); }

// No other fiber runs between the load and the store.
inline void add_atomically(double *to, double x) { *to += x; }
inline uint32_t add_atomically(uint32_t *to, uint32_t x) {
    uint32_t before = *to;
    *to += x;
    return before;
}

inline uint32_t load_acquire(const uint32_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline void store_release(uint32_t *at, uint32_t x) { __atomic_store_n(at, x, __ATOMIC_RELEASE); }

// Puts the fragments of a warp in place: `a` as 16 rows of `wide` bytes, `b` as 8 columns of them.
template <int PARTS>
inline const unsigned char *fragments(const uint32_t *a, const uint32_t *b) {
    constexpr int WIDE = 16 * PARTS;
    unsigned char *all = emulator::exchanged();
    int group = THREAD % 32 / 4, at = THREAD % 4 * 4;
    for (int part = 0; part < PARTS; part++) {
        memcpy(all + group * WIDE + 16 * part + at, &a[2 * part], 4);
        memcpy(all + (group + 8) * WIDE + 16 * part + at, &a[2 * part + 1], 4);
        memcpy(all + (16 + group) * WIDE + 16 * part + at, &b[part], 4);
    }
    emulator::meet();
    return all;
}

template <int PARTS> inline void products_s8(int32_t (&c)[4], const uint32_t *a, const uint32_t *b) {
    constexpr int WIDE = 16 * PARTS;
    auto all = reinterpret_cast<const int8_t *>(fragments<PARTS>(a, b));
    int group = THREAD % 32 / 4, column = THREAD % 4 * 2;
    for (int i = 0; i < 4; i++) {
        const int8_t *row = all + (group + i / 2 * 8) * WIDE;
        const int8_t *other = all + (16 + column + i % 2) * WIDE;
        int32_t sum = 0;
        for (int k = 0; k < WIDE; k++) {
            sum += int32_t(row[k]) * int32_t(other[k]);
        }
        c[i] += sum;
    }
}
inline void mma_s8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    products_s8<2>(c, a, b);
}
inline void mma_s8_half(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    uint32_t a[2] = {a0, a1};
    products_s8<1>(c, a, &b);
}
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    auto all = reinterpret_cast<const uint16_t *>(fragments<2>(a, b));
    int group = THREAD % 32 / 4, column = THREAD % 4 * 2;
    for (int i = 0; i < 4; i++) {
        const uint16_t *row = all + (group + i / 2 * 8) * 16;
        const uint16_t *other = all + (16 + column + i % 2) * 16;
        for (int k = 0; k < 16; k++) {
            float x = bits_float(uint32_t(row[k]) << 16), y = bits_float(uint32_t(other[k]) << 16);
            c[i] = fused(x, y, c[i]);
        }
    }
}

struct alignas(16) Four {
    uint32_t x[4];
};
inline Four load_four(const void *at) { return *static_cast<const Four *>(at); }
struct alignas(8) Two {
    uint32_t x[2];
};
inline Two load_two(const void *at) { return *static_cast<const Two *>(at); }
template <typename T> inline T load(const T *at) { return *at; }
inline Four stream_four(const void *at) { return load_four(at); }

inline void copy_later(void *to, const void *from) { emulator::copy_later(to, from, 16); }
inline void copy_word_later(void *to, const void *from) { emulator::copy_later(to, from, 4); }
inline void end_copies() { emulator::end_copies(); }
template <int N> inline void wait_for_copies() { emulator::wait_for_copies(N); }
