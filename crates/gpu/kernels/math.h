// Functions with the bits of the CPU's: `crates/kernels/src/math.rs` and `row.rs`.

#pragma once

#include "dev.h"

constexpr float ROUND = 12582912.0f;

// Bits of ROUND. A whole number below 2^22 added to them makes the float ROUND plus the number.
constexpr int32_t COUNTED_ZERO = 0x4b400000;
DEVICE float counted(int32_t bits) { return bits_float(uint32_t(bits)) - ROUND; }

// Returns e to the power x: 0 below -87.3, not a number for what is none.
DEVICE float exponential(float x) {
    bool low = x < -87.33654f;
    x = low ? -87.33654f : x;
    x = x > 88.72283f ? 88.72283f : x;
    float rounded = fused(x, 1.44269504088896340736f, ROUND);
    float n = rounded - ROUND;
    float r = fused(n, -0.6933594f, x);
    r = fused(n, 2.1219444e-4f, r);
    float p = 1.9875691e-4f;
    p = fused(p, r, 1.3982e-3f);
    p = fused(p, r, 8.333452e-3f);
    p = fused(p, r, 4.1665796e-2f);
    p = fused(p, r, 1.6666665e-1f);
    p = fused(p, r, 0.5f);
    float y = fused(p, r * r, r) + 1.0f;
    int32_t whole = int32_t(float_bits(rounded) - float_bits(ROUND));
    int32_t half = (whole + (whole >> 31 & 1)) >> 1;
    int32_t rest = whole - half;
    y = y * bits_float(uint32_t(half + 127) << 23) * bits_float(uint32_t(rest + 127) << 23);
    return low ? 0.0f : y;
}

DEVICE float silu(float x) { return divided(x, 1.0f + exponential(-x)); }

// Widens a finite f16.
DEVICE float half_float(uint32_t bits) {
    float magnitude = bits_float((bits & 0x7fff) << 13) * bits_float(239u << 23);
    return bits_float(float_bits(magnitude) | (bits & 0x8000) << 16);
}

DEVICE float brain_float(uint32_t bits) { return bits_float(bits << 16); }

// Widens two floats of E4M3, in the lower bytes, to bf16. Neither is a NaN.
DEVICE uint32_t brains_of_floats8(uint32_t two) {
    uint32_t apart = (two & 0xff) << 8 | (two & 0xff00) << 16;
    // In bf16 these bits have an exponent that is 120 too low.
    return brains_times((apart & 0x7f007f00) >> 4 | (apart & 0x80008000), 0x7b807b80);
}

// Rounds to the nearest bf16, ties to even.
DEVICE uint16_t float_brain(float x) {
    uint32_t bits = float_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return uint16_t(bits >> 16 | 0x40);
    }
    uint32_t half = 0x7fff + (bits >> 16 & 1);
    return uint16_t((bits + half) >> 16);
}

// Scale of a block of activations of eight bits, and the factor that makes integers of them.
struct Steps {
    float scale;
    float inverse;
    bool broken;
};

// `most` is the largest magnitude in the block, as bits.
DEVICE Steps steps_of(uint32_t most) {
    float largest = bits_float(most);
    bool broken = most >= 0x7f800000;
    bool nothing = largest < 1e-36f;
    float inverse = nothing || broken ? 0.0f : divided(127.0f, largest);
    float scale = broken ? bits_float(0x7fc00000) : nothing ? 0.0f : divided(largest, 127.0f);
    return Steps{scale, inverse, broken};
}

DEVICE int8_t step_of(float x, Steps steps) {
    int32_t rounded = int32_t(float_bits(fused(x, steps.inverse, ROUND)) - float_bits(ROUND));
    return steps.broken ? 0 : int8_t(rounded);
}

// Widens an element of the KV cache, or narrows to one.
DEVICE float widened(float x) { return x; }
DEVICE float widened(uint16_t x) { return brain_float(x); }
DEVICE void narrow(float x, float *to) { *to = x; }
DEVICE void narrow(float x, uint16_t *to) { *to = float_brain(x); }
