//! Numbers of the KV cache, as kernels read and write them.

use super::LANES;
use super::simd::Simd;
use crate::memory::Plain;

/// Number format of the cache.
pub(crate) trait Element: Plain {
    fn load(self) -> f32;
    fn store(x: f32) -> Self;
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
