//! [`Bytes`] for AVX2 and AVX-512 VNNI; see [`x86`](super::x86) for why the unsafe code is sound.

#![expect(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "the instructions are intrinsics, all sound for the same reason"
)]

use std::arch::x86_64::{
    __m256i, __m512i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm_unpackhi_epi8, _mm_unpacklo_epi8,
    _mm256_abs_epi8, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_cvtepi8_epi16, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi32,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sign_epi8, _mm256_sll_epi32,
    _mm256_slli_epi16, _mm256_srl_epi16, _mm256_srli_epi16, _mm256_sub_epi32, _mm512_add_epi32,
    _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_castsi256_si512, _mm512_cvtepi8_epi32,
    _mm512_dpbusd_epi32, _mm512_inserti64x4, _mm512_loadu_si512, _mm512_madd_epi16,
    _mm512_mullo_epi32, _mm512_or_si512, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_setzero_si512,
    _mm512_shuffle_epi8, _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srl_epi16, _mm512_srli_epi16,
    _mm512_sub_epi32,
};

use super::bytes::{Bytes, FOURS};
use super::sealed::Sealed;
use super::x86::{Avx2, Avx512};
use crate::simd::LANES;

#[inline(always)]
fn four([a, b, c, d]: [i8; 4]) -> i32 {
    i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8])
}

#[inline(always)]
fn pair([a, b]: [i16; 2]) -> i32 {
    i32::from(a as u16) | i32::from(b) << 16
}

/// Interleaves the two numbers of each row, widened to 16 bits.
#[inline(always)]
fn both(first: &[i8; LANES], second: &[i8; LANES]) -> [__m256i; 2] {
    unsafe {
        let [first, second] = [first, second].map(|x| _mm_loadu_si128(x.as_ptr().cast()));
        let low = _mm_unpacklo_epi8(first, second);
        let high = _mm_unpackhi_epi8(first, second);
        [_mm256_cvtepi8_epi16(low), _mm256_cvtepi8_epi16(high)]
    }
}

impl Sealed for Avx2 {}

impl<const BF16: bool> Sealed for Avx512<BF16> {}

impl Bytes for Avx2 {
    /// A row has two 16-bit sums, each of which adds the products of a pair of columns.
    const HOLDS: i32 = 2 * 32767;
    const RAISED: i32 = 0;

    type Fours = [__m256i; 2];
    type Sums = [__m256i; 2];
    type Counts = [__m256i; 2];

    #[inline(always)]
    fn fours(self, from: &[u8; FOURS]) -> Self::Fours {
        let at = from.as_ptr().cast::<__m256i>();
        unsafe { [_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))] }
    }

    #[inline(always)]
    fn low(self, x: Self::Fours) -> Self::Fours {
        unsafe {
            let mask = _mm256_set1_epi8(15);
            [_mm256_and_si256(x[0], mask), _mm256_and_si256(x[1], mask)]
        }
    }

    #[inline(always)]
    fn high(self, x: Self::Fours) -> Self::Fours {
        unsafe { self.low([_mm256_srli_epi16::<4>(x[0]), _mm256_srli_epi16::<4>(x[1])]) }
    }

    #[inline(always)]
    fn six<const SHIFT: u32>(self, low: Self::Fours, bits: Self::Fours) -> Self::Fours {
        let six = |low, bits| unsafe {
            let bits = match SHIFT {
                0 => _mm256_slli_epi16::<4>(bits),
                2 => _mm256_slli_epi16::<2>(bits),
                4 => bits,
                _ => _mm256_srli_epi16::<2>(bits),
            };
            _mm256_or_si256(low, _mm256_and_si256(bits, _mm256_set1_epi8(0x30)))
        };
        [six(low[0], bits[0]), six(low[1], bits[1])]
    }

    #[inline(always)]
    fn two_bits<const SHIFT: u32>(self, bits: Self::Fours) -> Self::Fours {
        bits.map(|bits| unsafe {
            let bits = _mm256_srl_epi16(bits, _mm_cvtsi32_si128(SHIFT as i32));
            _mm256_and_si256(bits, _mm256_set1_epi8(3))
        })
    }

    #[inline(always)]
    fn upper<const PLACE: u32>(
        self,
        at: usize,
        low: [Self::Fours; 2],
        bits: Self::Fours,
    ) -> [Self::Fours; 2] {
        let [mut first, mut second] = low;
        for half in 0..2 {
            unsafe {
                // Bits that come from the other byte of a pair are none of those that are taken.
                let bits = _mm256_srl_epi16(bits[half], _mm_cvtsi32_si128(at as i32));
                let mask = _mm256_set1_epi8(1 << PLACE);
                let (lower, upper) = if PLACE == 4 {
                    (_mm256_slli_epi16::<4>(bits), bits)
                } else {
                    (_mm256_slli_epi16::<2>(bits), _mm256_srli_epi16::<2>(bits))
                };
                first[half] = _mm256_or_si256(first[half], _mm256_and_si256(lower, mask));
                second[half] = _mm256_or_si256(second[half], _mm256_and_si256(upper, mask));
            }
        }
        [first, second]
    }

    #[inline(always)]
    fn looked_up(self, table: &[u8; 16], x: Self::Fours) -> Self::Fours {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, x[0]), _mm256_shuffle_epi8(table, x[1])]
        }
    }

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    fn no_counts(self) -> Self::Counts {
        self.no_sums()
    }

    #[inline(always)]
    fn counts(self, count: i32) -> Self::Counts {
        [unsafe { _mm256_set1_epi32(count) }; 2]
    }

    #[inline(always)]
    fn dot(self, weights: Self::Fours, x: [i8; 4], sums: Self::Sums) -> Self::Sums {
        unsafe {
            let x = _mm256_set1_epi32(four(x));
            [
                _mm256_add_epi16(sums[0], _mm256_maddubs_epi16(weights[0], x)),
                _mm256_add_epi16(sums[1], _mm256_maddubs_epi16(weights[1], x)),
            ]
        }
    }

    #[inline(always)]
    fn signed_dot(self, weights: Self::Fours, x: [i8; 4], sums: Self::Sums) -> Self::Sums {
        unsafe {
            let x = _mm256_set1_epi32(four(x));
            // `maddubs` multiplies unsigned by signed bytes, so the activation's sign moves to the
            // weight.
            let magnitude = _mm256_abs_epi8(x);
            let pairs = |weights| _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(weights, x));
            [
                _mm256_add_epi16(sums[0], pairs(weights[0])),
                _mm256_add_epi16(sums[1], pairs(weights[1])),
            ]
        }
    }

    #[inline(always)]
    fn scaled(self, sums: Self::Sums, scales: &[i8; LANES], counts: Self::Counts) -> Self::Counts {
        let scales = both(scales, scales);
        unsafe {
            [
                _mm256_add_epi32(counts[0], _mm256_madd_epi16(sums[0], scales[0])),
                _mm256_add_epi32(counts[1], _mm256_madd_epi16(sums[1], scales[1])),
            ]
        }
    }

    #[inline(always)]
    fn two(self, x: [&[i8; LANES]; 2], y: [i16; 2], counts: Self::Counts) -> Self::Counts {
        let x = both(x[0], x[1]);
        unsafe {
            let y = _mm256_set1_epi32(pair(y));
            [
                _mm256_add_epi32(counts[0], _mm256_madd_epi16(x[0], y)),
                _mm256_add_epi32(counts[1], _mm256_madd_epi16(x[1], y)),
            ]
        }
    }

    #[inline(always)]
    fn less<const SHIFT: u32>(self, a: Self::Counts, b: Self::Counts) -> Self::Counts {
        let less = |a, b| unsafe {
            _mm256_sub_epi32(a, _mm256_sll_epi32(b, _mm_cvtsi32_si128(SHIFT.cast_signed())))
        };
        [less(a[0], b[0]), less(a[1], b[1])]
    }
}

impl<const BF16: bool> Bytes for Avx512<BF16> {
    const HOLDS: i32 = i32::MAX;
    const RAISED: i32 = 128;

    type Fours = __m512i;
    type Sums = __m512i;
    type Counts = __m512i;

    #[inline(always)]
    fn fours(self, from: &[u8; FOURS]) -> __m512i {
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn low(self, x: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(x, _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn high(self, x: __m512i) -> __m512i {
        unsafe { self.low(_mm512_srli_epi16::<4>(x)) }
    }

    #[inline(always)]
    fn six<const SHIFT: u32>(self, low: __m512i, bits: __m512i) -> __m512i {
        unsafe {
            let bits = match SHIFT {
                0 => _mm512_slli_epi16::<4>(bits),
                2 => _mm512_slli_epi16::<2>(bits),
                4 => bits,
                _ => _mm512_srli_epi16::<2>(bits),
            };
            _mm512_or_si512(low, _mm512_and_si512(bits, _mm512_set1_epi8(0x30)))
        }
    }

    #[inline(always)]
    fn two_bits<const SHIFT: u32>(self, bits: __m512i) -> __m512i {
        unsafe {
            let bits = _mm512_srl_epi16(bits, _mm_cvtsi32_si128(SHIFT as i32));
            _mm512_and_si512(bits, _mm512_set1_epi8(3))
        }
    }

    #[inline(always)]
    fn upper<const PLACE: u32>(
        self,
        at: usize,
        [first, second]: [__m512i; 2],
        bits: __m512i,
    ) -> [__m512i; 2] {
        unsafe {
            let bits = _mm512_srl_epi16(bits, _mm_cvtsi32_si128(at as i32));
            let mask = _mm512_set1_epi8(1 << PLACE);
            let (lower, upper) = if PLACE == 4 {
                (_mm512_slli_epi16::<4>(bits), bits)
            } else {
                (_mm512_slli_epi16::<2>(bits), _mm512_srli_epi16::<2>(bits))
            };
            [
                _mm512_or_si512(first, _mm512_and_si512(lower, mask)),
                _mm512_or_si512(second, _mm512_and_si512(upper, mask)),
            ]
        }
    }

    #[inline(always)]
    fn looked_up(self, table: &[u8; 16], x: __m512i) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, x)
        }
    }

    #[inline(always)]
    fn no_sums(self) -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn no_counts(self) -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn counts(self, count: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(count) }
    }

    #[inline(always)]
    fn dot(self, weights: __m512i, x: [i8; 4], sums: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(four(x))) }
    }

    #[inline(always)]
    fn signed_dot(self, weights: __m512i, x: [i8; 4], sums: __m512i) -> __m512i {
        self.dot(weights, x, sums)
    }

    #[inline(always)]
    fn scaled(self, sums: __m512i, scales: &[i8; LANES], counts: __m512i) -> __m512i {
        unsafe {
            let scales = _mm512_cvtepi8_epi32(_mm_loadu_si128(scales.as_ptr().cast()));
            _mm512_add_epi32(counts, _mm512_mullo_epi32(sums, scales))
        }
    }

    #[inline(always)]
    fn two(self, x: [&[i8; LANES]; 2], y: [i16; 2], counts: __m512i) -> __m512i {
        unsafe {
            let [low, high] = both(x[0], x[1]);
            let x = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            _mm512_add_epi32(counts, _mm512_madd_epi16(x, _mm512_set1_epi32(pair(y))))
        }
    }

    #[inline(always)]
    fn less<const SHIFT: u32>(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(a, _mm512_slli_epi32::<SHIFT>(b)) }
    }
}
