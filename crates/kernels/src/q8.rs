//! Dot products of blocks of eight-bit integers. They are exact, so each tier may choose its order.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the instructions for it are intrinsics")
)]

use crate::rowwise::BLOCK;
use crate::simd::{LANES, Simd, Tier, Work};

/// Bytes of a tile's block: for each four columns, four bytes of each of the 16 rows.
pub(crate) const TILE_BLOCK: usize = LANES * BLOCK;

/// Returns the dot products of 16 rows with one block of each of the `M` activation rows. `sums`
/// holds the sum of the values of each activation block.
///
/// No value may be -128, since its eight-bit absolute value overflows.
#[inline(always)]
pub(crate) fn dots<S: Simd, const M: usize>(
    _: S,
    weights: &[i8; TILE_BLOCK],
    activations: [&[i8; BLOCK]; M],
    sums: [i32; M],
) -> [[i32; LANES]; M] {
    match S::TIER {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a value of type `S` exists only where the machine has the instructions of its
        // tier.
        Tier::Avx2 => unsafe { x86::dots_avx2(weights, activations) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Tier::Avx512 => unsafe { x86::dots_avx512(weights, activations, sums) },
        _ => {
            let _ = sums;
            dots_portable(weights, activations)
        }
    }
}

#[inline(always)]
fn dots_portable<const M: usize>(
    weights: &[i8; TILE_BLOCK],
    activations: [&[i8; BLOCK]; M],
) -> [[i32; LANES]; M] {
    let mut sums = [[0; LANES]; M];
    for (group, weights) in weights.as_chunks::<{ 4 * LANES }>().0.iter().enumerate() {
        for (sums, activations) in sums.iter_mut().zip(activations) {
            for (row, sum) in sums.iter_mut().enumerate() {
                for k in 0..4 {
                    let weight = i32::from(weights[4 * row + k]);
                    *sum += weight * i32::from(activations[4 * group + k]);
                }
            }
        }
    }
    sums
}

impl Tier {
    /// Returns the fastest tier of this machine whose integer products pass a check. The check is
    /// there for emulators, which can get these instructions wrong.
    pub fn best() -> Self {
        Self::available().rev().find(|tier| counts_right(*tier)).unwrap_or(Self::Portable)
    }
}

/// Returns true if a tier's products of test numbers, including the extreme values, match the
/// portable ones.
fn counts_right(tier: Tier) -> bool {
    let weights = std::array::from_fn(|i| (i * 37 % 255) as i16 - 127).map(|weight| weight as i8);
    let extremes = [[127; BLOCK], [-127; BLOCK]];
    let mixed = std::array::from_fn(|i| if i % 2 == 0 { 127 } else { -((i * 5 % 128) as i8) });
    let activations = [&extremes[0], &extremes[1], &mixed];
    let mut products = [[0; LANES]; 3];
    tier.run(Dots { weights: &weights, activations, products: &mut products });
    products == dots_portable(&weights, activations)
}

struct Dots<'a> {
    weights: &'a [i8; TILE_BLOCK],
    activations: [&'a [i8; BLOCK]; 3],
    products: &'a mut [[i32; LANES]; 3],
}

impl Work for Dots<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let sums = self.activations.map(|values| values.iter().map(|x| i32::from(*x)).sum());
        *self.products = dots(simd, self.weights, self.activations, sums);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, _mm256_abs_epi8, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16,
        _mm256_maddubs_epi16, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_si256,
        _mm256_sign_epi8, _mm256_storeu_si256, _mm512_dpbusd_epi32, _mm512_loadu_si512,
        _mm512_set1_epi8, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_storeu_si512,
        _mm512_xor_si512,
    };

    use super::{BLOCK, LANES, TILE_BLOCK};
    use crate::prefetch::{distance, prefetch_ahead};

    /// Packs the four bytes of a group of columns into an integer, to broadcast to every lane.
    #[inline(always)]
    fn four(bytes: &[i8; BLOCK], group: usize) -> i32 {
        let at = 4 * group;
        let [a, b, c, d] = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8])
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) unsafe fn dots_avx2<const M: usize>(
        weights: &[i8; TILE_BLOCK],
        activations: [&[i8; BLOCK]; M],
    ) -> [[i32; LANES]; M] {
        let ones = _mm256_set1_epi16(1);
        let mut sums = [[_mm256_setzero_si256(); 2]; M];
        let distance = distance();
        for group in 0..BLOCK / 4 {
            prefetch_ahead(&weights[4 * LANES * group], distance);
            // SAFETY: 64 bytes from here are within the block.
            let halves = unsafe {
                let at = weights.as_ptr().add(4 * LANES * group).cast::<__m256i>();
                [_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))]
            };
            for m in 0..M {
                let a = _mm256_set1_epi32(four(activations[m], group));
                let magnitude = _mm256_abs_epi8(a);
                for half in 0..2 {
                    // `maddubs` multiplies unsigned by signed bytes, so the activation's sign moves
                    // to the weight. A pair of products is at most 2 * 127 * 127, which fits in 16
                    // bits.
                    let pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(halves[half], a));
                    let fours = _mm256_madd_epi16(pairs, ones);
                    sums[m][half] = _mm256_add_epi32(sums[m][half], fours);
                }
            }
        }
        stored(sums)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn stored<const M: usize>(sums: [[__m256i; 2]; M]) -> [[i32; LANES]; M] {
        let mut out = [[0; LANES]; M];
        for m in 0..M {
            // SAFETY: each row of `out` has room for two vectors of eight numbers.
            unsafe {
                _mm256_storeu_si256(out[m].as_mut_ptr().cast(), sums[m][0]);
                _mm256_storeu_si256(out[m].as_mut_ptr().add(8).cast(), sums[m][1]);
            }
        }
        out
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(crate) unsafe fn dots_avx512<const M: usize>(
        weights: &[i8; TILE_BLOCK],
        activations: [&[i8; BLOCK]; M],
        of_activations: [i32; M],
    ) -> [[i32; LANES]; M] {
        let high = _mm512_set1_epi8(-128);
        // `dpbusd` multiplies unsigned by signed bytes. So each weight is raised by 128, and the
        // sums start at -128 times the sum of the activations.
        let mut sums = [_mm512_setzero_si512(); M];
        for m in 0..M {
            sums[m] = _mm512_set1_epi32(-128 * of_activations[m]);
        }
        let distance = distance();
        for group in 0..BLOCK / 4 {
            prefetch_ahead(&weights[64 * group], distance);
            // SAFETY: 64 bytes from here are within the block.
            let signed = unsafe { _mm512_loadu_si512(weights.as_ptr().add(64 * group).cast()) };
            let unsigned = _mm512_xor_si512(signed, high);
            for m in 0..M {
                let a = _mm512_set1_epi32(four(activations[m], group));
                sums[m] = _mm512_dpbusd_epi32(sums[m], unsigned, a);
            }
        }
        let mut out = [[0; LANES]; M];
        for m in 0..M {
            // SAFETY: each row of `out` has room for sixteen numbers.
            unsafe { _mm512_storeu_si512(out[m].as_mut_ptr().cast(), sums[m]) };
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BLOCK, Dots, LANES, TILE_BLOCK, Tier, counts_right, dots_portable};

    proptest! {
        #[test]
        fn every_tier_gives_the_exact_products(
            weights in prop::array::uniform32(prop::array::uniform16(-127i8..=127)),
            activations in prop::array::uniform3(prop::array::uniform32(-127i8..=127)),
            extreme in 0..4u8,
        ) {
            let mut flat: [i8; TILE_BLOCK] = std::array::from_fn(|i| weights[i / 16][i % 16]);
            let mut activations = activations;
            match extreme {
                1 => flat = [127; TILE_BLOCK],
                2 => { flat = [-127; TILE_BLOCK]; activations = [[127; BLOCK]; 3]; }
                3 => activations = [[-127; BLOCK]; 3],
                _ => {}
            }
            let lanes = activations.each_ref();
            let right: [[i32; LANES]; 3] = std::array::from_fn(|m| std::array::from_fn(|row| {
                let at = |k: usize| i32::from(flat[k / 4 * 64 + 4 * row + k % 4]);
                (0..BLOCK).map(|k| at(k) * i32::from(activations[m][k])).sum()
            }));
            prop_assert_eq!(dots_portable(&flat, lanes), right);
            for tier in Tier::available() {
                let mut sums = [[0; LANES]; 3];
                let products = &mut sums;
                tier.run(Dots { weights: &flat, activations: lanes, products });
                prop_assert!(counts_right(tier));
                prop_assert_eq!(sums, right, "{:?}", tier);
            }
        }
    }
}
