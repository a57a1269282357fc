//! [`Simd`] for AVX2 and AVX-512.
//!
//! Every unsafe block here is sound for the same reason: an [`Avx2`] or [`Avx512`] value exists
//! only where the machine has the instructions, and each load or store covers sixteen numbers
//! behind a reference.

#![expect(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "the instructions are intrinsics, all sound for the same reason"
)]

use std::arch::x86_64::{
    __m128i, __m256, __m256i, __m512, __m512bh, _mm_loadu_si128, _mm_srli_si128, _mm256_add_ps,
    _mm256_and_si256, _mm256_castsi256_ps, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32,
    _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_max_epi32, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32,
    _mm256_storeu_ps, _mm512_add_ps, _mm512_and_si512, _mm512_castsi512_ps, _mm512_cvtepi32_ps,
    _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_dpbf16_ps,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_max_epi32, _mm512_mul_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps,
};
use std::mem::transmute;

use super::portable::LEAST_POWER;
use super::{LANES, Lanes, Simd, Tier};

/// Token for AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// # Safety
    ///
    /// The machine must support these instructions.
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

/// Token for AVX-512 F, BW, DQ, VL and VNNI, in addition to [`Avx2`]; with `BF16` also for
/// AVX-512-BF16.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const BF16: bool>(());

impl<const BF16: bool> Avx512<BF16> {
    /// # Safety
    ///
    /// The machine must support these instructions.
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

impl Simd for Avx2 {
    const TIER: Tier = Tier::Avx2;

    type Vector = [__m256; 2];

    #[inline(always)]
    fn load(self, from: &Lanes) -> Self::Vector {
        let at = from.as_ptr();
        unsafe { [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))] }
    }

    #[inline(always)]
    fn store(self, x: Self::Vector, to: &mut Lanes) {
        let at = to.as_mut_ptr();
        unsafe {
            _mm256_storeu_ps(at, x[0]);
            _mm256_storeu_ps(at.add(8), x[1]);
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Vector {
        [unsafe { _mm256_set1_ps(x) }; 2]
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn fused(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn integers(self, x: &[i32; LANES]) -> Self::Vector {
        let at = x.as_ptr().cast::<__m256i>();
        unsafe {
            [
                _mm256_cvtepi32_ps(_mm256_loadu_si256(at)),
                _mm256_cvtepi32_ps(_mm256_loadu_si256(at.add(1))),
            ]
        }
    }

    #[inline(always)]
    fn counted(self, x: Self::Counts) -> Self::Vector {
        unsafe { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
    }

    #[inline(always)]
    fn brains(self, x: &[u16; LANES]) -> Self::Vector {
        let at = x.as_ptr().cast::<__m128i>();
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(at));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.add(1)));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }

    #[inline(always)]
    fn pairs(self, x: &[u32; LANES]) -> [Self::Vector; 2] {
        let at = x.as_ptr().cast::<__m256i>();
        unsafe {
            let [low, high] = [_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))];
            let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            [
                [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
                ],
                [
                    _mm256_castsi256_ps(_mm256_and_si256(low, upper)),
                    _mm256_castsi256_ps(_mm256_and_si256(high, upper)),
                ],
            ]
        }
    }

    #[inline(always)]
    fn halves(self, x: &[u16; LANES]) -> Self::Vector {
        let at = x.as_ptr().cast::<__m128i>();
        unsafe {
            [_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at.add(1)))]
        }
    }

    #[inline(always)]
    fn powers(self, x: &[u8; LANES]) -> Self::Vector {
        unsafe {
            let x = _mm_loadu_si128(x.as_ptr().cast());
            let power = |x| {
                let bits = _mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(x));
                let bits = _mm256_max_epi32(bits, _mm256_set1_epi32(LEAST_POWER.cast_signed()));
                _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5))
            };
            [power(x), power(_mm_srli_si128::<8>(x))]
        }
    }
}

impl<const BF16: bool> Simd for Avx512<BF16> {
    const TIER: Tier = if BF16 { Tier::Avx512Bf16 } else { Tier::Avx512 };

    type Vector = __m512;

    #[inline(always)]
    fn load(self, from: &Lanes) -> __m512 {
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, x: __m512, to: &mut Lanes) {
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn multiply(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn fused(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn integers(self, x: &[i32; LANES]) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_loadu_si512(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn counted(self, x: Self::Counts) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(x) }
    }

    #[inline(always)]
    fn brains(self, x: &[u16; LANES]) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn pairs(self, x: &[u32; LANES]) -> [__m512; 2] {
        unsafe {
            let both = _mm512_loadu_si512(x.as_ptr().cast());
            let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)),
                _mm512_castsi512_ps(_mm512_and_si512(both, upper)),
            ]
        }
    }

    #[inline(always)]
    fn halves(self, x: &[u16; LANES]) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn powers(self, x: &[u8; LANES]) -> __m512 {
        unsafe {
            let x = _mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            let least = _mm512_set1_epi32(LEAST_POWER.cast_signed());
            let bits = _mm512_max_epi32(_mm512_slli_epi32::<23>(x), least);
            _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.5))
        }
    }

    #[inline(always)]
    fn pair_products(self, pairs: &[u32; LANES], x: u32, sums: __m512) -> __m512 {
        if BF16 {
            unsafe {
                let pairs: __m512bh = transmute(_mm512_loadu_si512(pairs.as_ptr().cast()));
                let x: __m512bh = transmute(_mm512_set1_epi32(x.cast_signed()));
                return _mm512_dpbf16_ps(sums, pairs, x);
            }
        }
        self.defined_pair_products(pairs, x, sums)
    }
}
