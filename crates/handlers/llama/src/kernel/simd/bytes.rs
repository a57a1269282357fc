//! Products of bytes, sixteen rows of four at a time: exact, in whatever order a tier likes.

use super::Portable;
use crate::kernel::LANES;

/// Bytes of four columns of sixteen rows.
pub(crate) const FOURS: usize = 4 * LANES;

/// The part of [`Simd`](super::Simd) that counts.
///
/// Weights are unsigned and activations signed. All methods are inlined always.
pub(crate) trait Bytes: Copy {
    /// The magnitude that a row's sum of products can reach in [`Self::Sums`]; what is beyond must
    /// be moved to [`Self::Counts`] before.
    const HOLDS: i32;

    /// Four bytes of each row.
    type Fours: Copy;
    /// Each row's sum of a few products.
    type Sums: Copy;
    /// Each row's number in 32 bits.
    type Counts: Copy;

    fn fours(self, from: &[u8; FOURS]) -> Self::Fours;
    /// The lower four bits of each byte.
    fn low(self, x: Self::Fours) -> Self::Fours;
    /// The upper four bits of each byte.
    fn high(self, x: Self::Fours) -> Self::Fours;
    /// Numbers of six bits: of the lower four, and of the lowest two of `bits` shifted right by
    /// `SHIFT`.
    fn six<const SHIFT: u32>(self, low: Self::Fours, bits: Self::Fours) -> Self::Fours;

    fn no_sums(self) -> Self::Sums;
    fn no_counts(self) -> Self::Counts;
    /// Adds each row's four products.
    fn dot(self, weights: Self::Fours, x: [i8; 4], sums: Self::Sums) -> Self::Sums;
    /// Adds the sums, each times its row's scale.
    fn scaled(self, sums: Self::Sums, scales: &[i8; LANES], counts: Self::Counts) -> Self::Counts;
    /// Adds each row's two products.
    fn two(self, x: [&[i8; LANES]; 2], y: [i16; 2], counts: Self::Counts) -> Self::Counts;
    /// `a - 32 b`.
    fn less_32(self, a: Self::Counts, b: Self::Counts) -> Self::Counts;
}

impl Bytes for Portable {
    const HOLDS: i32 = i32::MAX;

    type Fours = [u8; FOURS];
    type Sums = [i32; LANES];
    type Counts = [i32; LANES];

    #[inline(always)]
    fn fours(self, from: &[u8; FOURS]) -> Self::Fours {
        *from
    }

    #[inline(always)]
    fn low(self, mut x: Self::Fours) -> Self::Fours {
        for x in &mut x {
            *x &= 15;
        }
        x
    }

    #[inline(always)]
    fn high(self, mut x: Self::Fours) -> Self::Fours {
        for x in &mut x {
            *x >>= 4;
        }
        x
    }

    #[inline(always)]
    fn six<const SHIFT: u32>(self, mut low: Self::Fours, bits: Self::Fours) -> Self::Fours {
        for at in 0..FOURS {
            low[at] |= (bits[at] >> SHIFT & 3) << 4;
        }
        low
    }

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        [0; LANES]
    }

    #[inline(always)]
    fn no_counts(self) -> Self::Counts {
        [0; LANES]
    }

    #[inline(always)]
    fn dot(self, weights: Self::Fours, x: [i8; 4], mut sums: Self::Sums) -> Self::Sums {
        for row in 0..LANES {
            for k in 0..4 {
                sums[row] += i32::from(weights[4 * row + k]) * i32::from(x[k]);
            }
        }
        sums
    }

    #[inline(always)]
    fn scaled(
        self,
        sums: Self::Sums,
        scales: &[i8; LANES],
        mut counts: Self::Counts,
    ) -> Self::Counts {
        for row in 0..LANES {
            counts[row] += sums[row] * i32::from(scales[row]);
        }
        counts
    }

    #[inline(always)]
    fn two(self, x: [&[i8; LANES]; 2], y: [i16; 2], mut counts: Self::Counts) -> Self::Counts {
        for k in 0..2 {
            for row in 0..LANES {
                counts[row] += i32::from(x[k][row]) * i32::from(y[k]);
            }
        }
        counts
    }

    #[inline(always)]
    fn less_32(self, mut a: Self::Counts, b: Self::Counts) -> Self::Counts {
        for row in 0..LANES {
            a[row] -= 32 * b[row];
        }
        a
    }
}
