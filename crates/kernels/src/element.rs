//! Numbers of the KV cache, as kernels read and write them.

use crate::memory::Plain;
use crate::simd::{LANES, Simd};

/// Number format of a KV cache: f32, or bf16 in the bits of a `u16`.
pub trait Element: Plain {
    /// Converts to f32, exactly.
    fn load(self) -> f32;
    /// Converts from f32, rounding to the nearest number.
    fn store(x: f32) -> Self;
    /// Loads a vector. It must be always inlined: see [`Work`](crate::simd::Work).
    fn vector<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Vector;
}

impl Element for f32 {
    #[inline(always)]
    fn load(self) -> f32 {
        self
    }

    #[inline(always)]
    fn store(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn vector<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Vector {
        simd.load(from)
    }
}

/// bf16: the upper half of an f32.
impl Element for u16 {
    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }

    #[inline(always)]
    fn store(x: f32) -> Self {
        half::bf16::from_f32(x).to_bits()
    }

    #[inline(always)]
    fn vector<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Vector {
        simd.brains(from)
    }
}
