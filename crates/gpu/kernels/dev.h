// Language of the kernels: CUDA where nvcc compiles them, and C++ on the emulator where g++ does.
//
// Both compile the same source. A multiplication and an addition are two roundings unless `fused` is
// written: nvcc is called with `-fmad=false`, g++ with `-ffp-contract=off`.

#pragma once

#include <stdint.h>

#ifdef __CUDACC__

#define DEVICE __device__ __forceinline__
// A kernel takes one struct, and blocks of at most this many threads. Two blocks have registers.
#define KERNEL(name, Args, threads)                                                                \
    extern "C" __global__ void __launch_bounds__(threads, 2) name(const __grid_constant__ Args a)
// The same for kernels with so much shared memory that few blocks run at once: one has registers.
#define LARGE_KERNEL(name, Args, threads)                                                          \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ Args a)
// Memory that the threads of a block share. Its contents are undefined when a block begins.
#define SHARED(Type, name)                                                                         \
    using name##_type = Type;                                                                      \
    __shared__ name##_type name
// The same for the one variable whose bytes are given at the launch.
#define LARGE_SHARED(Type, name)                                                                   \
    using name##_type = Type;                                                                      \
    extern __shared__ uint4 large_shared[];                                                        \
    name##_type &name = *reinterpret_cast<name##_type *>(large_shared)

#define THREAD threadIdx.x
#define THREADS blockDim.x
#define BLOCK_X blockIdx.x
#define BLOCK_Y blockIdx.y
#define BLOCKS_X gridDim.x

DEVICE void barrier() { __syncthreads(); }

template <typename T> DEVICE T from_lane_xor(T x, int mask) {
    return __shfl_xor_sync(0xffffffffu, x, mask);
}

DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float divided(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float root(float x) { return __fsqrt_rn(x); }
DEVICE float bits_float(uint32_t x) { return __uint_as_float(x); }
DEVICE uint32_t float_bits(float x) { return __float_as_uint(x); }
DEVICE float whole(int32_t x) { return __int2float_rn(x); }
// Products of two pairs of bf16.
DEVICE uint32_t brains_times(uint32_t a, uint32_t b) {
    uint32_t c;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(c) : "r"(a), "r"(b), "r"(0x80008000));
    return c;
}
DEVICE double bits_double(uint64_t x) { return __longlong_as_double(int64_t(x)); }
DEVICE uint64_t double_bits(double x) { return uint64_t(__double_as_longlong(x)); }
// Number of zeros before the first one: 64 if there is none.
DEVICE int leading_zeros(uint64_t x) { return __clzll(int64_t(x)); }

// Adds to memory that other threads add to. The order of the additions is not defined.
DEVICE void add_atomically(double *to, double x) { atomicAdd(to, x); }
// The same for an integer; returns what was there before.
DEVICE uint32_t add_atomically(uint32_t *to, uint32_t x) { return atomicAdd(to, x); }

DEVICE uint32_t load_acquire(const uint32_t *at) {
    uint32_t x;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}
DEVICE void store_release(uint32_t *at, uint32_t x) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}
// Lets other work run while a thread waits.
DEVICE void pause() { __nanosleep(100); }
DEVICE uint64_t nanoseconds() {
    uint64_t x;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(x));
    return x;
}

// Adds to `c` the products of two signed numbers of 16 bits and the lower two bytes of `b`.
DEVICE int32_t pair_product(uint32_t a, uint32_t b, int32_t c) {
    return __dp2a_lo(int32_t(a), int32_t(b), c);
}

// Products of 16 x 32 and 32 x 8 integers of eight bits, added to 16 x 8 of 32 bits.
DEVICE void mma_s8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The same for 16 columns of the first and 16 rows of the second.
DEVICE void mma_s8_half(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
                 "{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(b));
}
// Products of 16 x 16 and 16 x 8 bf16, added to 16 x 8 f32 in the order of the hardware.
DEVICE void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

struct alignas(16) Four {
    uint32_t x[4];
};
// Loads 16 bytes that no thread writes during the kernel.
DEVICE Four load_four(const void *at) {
    uint4 v = __ldg(static_cast<const uint4 *>(at));
    return Four{{v.x, v.y, v.z, v.w}};
}
struct alignas(8) Two {
    uint32_t x[2];
};
DEVICE Two load_two(const void *at) {
    uint2 v = __ldg(static_cast<const uint2 *>(at));
    return Two{{v.x, v.y}};
}
template <typename T> DEVICE T load(const T *at) { return __ldg(at); }
// Loads 16 bytes as `load_four`, and does not keep them in the cache of the multiprocessor.
DEVICE Four stream_four(const void *at) {
    Four v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
        : "l"(at));
    return v;
}

// Copies 16 bytes to shared memory, at the latest when the thread waits for the copies.
DEVICE void copy_later(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     uint32_t(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
}
// The same for 4 bytes.
DEVICE void copy_word_later(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                     uint32_t(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
}
// Makes a group of the thread's copies since the last one.
DEVICE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of the thread but the last N.
template <int N> DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else
#include "emulator.h"
#endif

constexpr int WARP = 32;

DEVICE uint32_t load_word(const void *at) { return load(static_cast<const uint32_t *>(at)); }

DEVICE uint32_t least_of(uint32_t a, uint32_t b) { return a < b ? a : b; }

DEVICE int lane() { return int(THREAD) % WARP; }
DEVICE int warp() { return int(THREAD) / WARP; }

// Adds up the lanes of each group of `width` lanes by a tree: neighbors first, then pairs. Each lane
// gets the sum, since an addition does not depend on the order of its two terms.
DEVICE float tree_of_lanes(float x, int width) {
    for (int mask = 1; mask < width; mask *= 2) {
        x = x + from_lane_xor(x, mask);
    }
    return x;
}

// Adds up the first `many` of N numbers by a tree; the others are zeros. The sum is the first number.
// An addition of a zero would turn a sum of -0 into 0, so none is added without need.
template <int N> DEVICE void add_up(float (&x)[N], uint32_t many) {
#pragma unroll
    for (int apart = 1; apart < N; apart *= 2) {
        if (apart < int(many)) {
#pragma unroll
            for (int i = 0; i + apart < N; i += 2 * apart) {
                x[i] = x[i] + x[i + apart];
            }
        }
    }
}
