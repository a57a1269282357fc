//! Byte dot products, four columns of sixteen rows at a time. They are exact, so each tier may
//! choose its order.

use super::portable::Portable;
use super::sealed::Sealed;
use crate::simd::LANES;

/// Bytes in four columns of sixteen rows.
pub const FOURS: usize = 4 * LANES;

/// Integer part of [`Simd`](super::Simd).
///
/// Weights are unsigned, activations are signed. All methods are always inlined.
pub trait Bytes: Copy + Sealed {
    /// Largest magnitude of a row's sum of products that [`Self::Sums`] can hold. Larger sums must
    /// be moved to [`Self::Counts`] first.
    const HOLDS: i32;
    /// Number by which signed weights are raised in [`Self::Fours`]: 128 where a tier multiplies
    /// unsigned bytes, else 0.
    const RAISED: i32;

    /// Four bytes of each row.
    type Fours: Copy;
    /// Partial sum of products of each row, possibly in narrow integers.
    type Sums: Copy;
    /// 32-bit accumulator of each row.
    type Counts: Copy;

    /// Loads four bytes of each row.
    fn fours(self, from: &[u8; FOURS]) -> Self::Fours;
    /// Returns the lower four bits of each byte.
    fn low(self, x: Self::Fours) -> Self::Fours;
    /// Returns the upper four bits of each byte.
    fn high(self, x: Self::Fours) -> Self::Fours;
    /// Combines six-bit numbers: the lower four bits from `low`, the upper two from `bits` shifted
    /// right by `SHIFT`.
    fn six<const SHIFT: u32>(self, low: Self::Fours, bits: Self::Fours) -> Self::Fours;
    /// Returns the two bits of each byte that begin at bit `SHIFT`.
    fn two_bits<const SHIFT: u32>(self, bits: Self::Fours) -> Self::Fours;

    /// Adds an upper bit to the numbers of two vectors, which have `PLACE` bits, 2 or 4: bit `at`,
    /// below 4, and bit `at + 4` of `bits`.
    fn upper<const PLACE: u32>(
        self,
        at: usize,
        low: [Self::Fours; 2],
        bits: Self::Fours,
    ) -> [Self::Fours; 2];
    /// Replaces each byte, below 16, by its number in a table.
    fn looked_up(self, table: &[u8; 16], x: Self::Fours) -> Self::Fours;

    /// Returns partial sums of zero.
    fn no_sums(self) -> Self::Sums;
    /// Returns accumulators of zero.
    fn no_counts(self) -> Self::Counts;
    /// Returns accumulators that hold the same number.
    fn counts(self, count: i32) -> Self::Counts;
    /// Adds the four products of each row to its sum.
    fn dot(self, weights: Self::Fours, x: [i8; 4], sums: Self::Sums) -> Self::Sums;
    /// Adds the four products of each row to its sum, of signed weights that were raised by
    /// [`Self::RAISED`]. Neither they nor the activations may be -128.
    fn signed_dot(self, weights: Self::Fours, x: [i8; 4], sums: Self::Sums) -> Self::Sums;
    /// Adds each row's sum times the row's scale to its accumulator.
    fn scaled(self, sums: Self::Sums, scales: &[i8; LANES], counts: Self::Counts) -> Self::Counts;
    /// Adds the two products of each row to its accumulator.
    fn two(self, x: [&[i8; LANES]; 2], y: [i16; 2], counts: Self::Counts) -> Self::Counts;
    /// Returns `a - 2^SHIFT b`.
    fn less<const SHIFT: u32>(self, a: Self::Counts, b: Self::Counts) -> Self::Counts;
}

/// Returns how many of `most` groups of four columns have products that fit a tier's partial sums:
/// `most` halved as often as needed. No weight is above `largest`, no activation above 127.
pub(crate) const fn at_once(holds: i32, largest: i32, most: usize) -> usize {
    let mut groups = most;
    while groups as i32 > holds / (4 * 127 * largest) {
        groups /= 2;
    }
    groups
}

impl Sealed for Portable {}

impl Bytes for Portable {
    const HOLDS: i32 = i32::MAX;
    const RAISED: i32 = 0;

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
    fn two_bits<const SHIFT: u32>(self, mut bits: Self::Fours) -> Self::Fours {
        for bits in &mut bits {
            *bits = *bits >> SHIFT & 3;
        }
        bits
    }

    #[inline(always)]
    fn upper<const PLACE: u32>(
        self,
        at: usize,
        mut low: [Self::Fours; 2],
        bits: Self::Fours,
    ) -> [Self::Fours; 2] {
        for byte in 0..FOURS {
            let bits = bits[byte] >> at;
            low[0][byte] |= (bits & 1) << PLACE;
            low[1][byte] |= (bits >> 4 & 1) << PLACE;
        }
        low
    }

    #[inline(always)]
    fn looked_up(self, table: &[u8; 16], mut x: Self::Fours) -> Self::Fours {
        for x in &mut x {
            *x = table[usize::from(*x & 15)];
        }
        x
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
    fn counts(self, count: i32) -> Self::Counts {
        [count; LANES]
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
    fn signed_dot(self, weights: Self::Fours, x: [i8; 4], mut sums: Self::Sums) -> Self::Sums {
        for row in 0..LANES {
            for k in 0..4 {
                sums[row] += i32::from(weights[4 * row + k].cast_signed()) * i32::from(x[k]);
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
    fn less<const SHIFT: u32>(self, mut a: Self::Counts, b: Self::Counts) -> Self::Counts {
        for row in 0..LANES {
            a[row] -= b[row] << SHIFT;
        }
        a
    }
}
