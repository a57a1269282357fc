//! Tiles of ggml's blocks of 32 columns with values of four or five bits.
//!
//! A weight is `d * value`, or `d * value + min`. `d` and `min` belong to the row's block. `value`
//! is an integer, for which the block stores `value + OFFSET` or a place in a table.
//!
//! Products with activations in blocks of 32 eight-bit integers are exact 32-bit integers up to the
//! multiplication by `d`. No stored value is above 241 and no activation above 127, so the sum of 32
//! products is below 2^20: it fits an i32, and an f32 holds it exactly. Partial sums in 16 bits are
//! added up before they can overflow (see [`at_once`]).

#![expect(unsafe_code, reason = "blocks lie in memory that is not of their type")]

mod scales;
mod values;

use crate::memory::Plain;
use crate::prefetch::{distance, prefetch};
use crate::rowwise::BLOCK;
use crate::simd::{LANES, Simd, at_once};

use self::scales::{Head, Power, Scale, ScaleAndMin};
use self::values::{Fives, Floats, Halves, Levels, Values};

pub(crate) use self::values::{LEVELS, raised};

/// Q4_0: four-bit values from -8 to 7.
pub(crate) type Q4_0 = Packed<Scale, Halves<8>>;
/// Q4_1: four-bit values from 0 to 15, and a least value.
pub(crate) type Q4_1 = Packed<ScaleAndMin, Halves<0>>;
/// Q5_0: five-bit values from -16 to 15.
pub(crate) type Q5_0 = Packed<Scale, Fives<16>>;
/// Q5_1: five-bit values from 0 to 31, and a least value.
pub(crate) type Q5_1 = Packed<ScaleAndMin, Fives<0>>;
/// IQ4_NL: one of sixteen levels.
pub(crate) type Iq4Nl = Packed<Scale, Levels>;
/// MXFP4: four-bit floats with a power of two (OCP Microscaling Formats, version 1.0).
pub(crate) type Mxfp4 = Packed<Power, Floats>;

/// Groups of four columns in a block. A vector of values has two of them, `STEPS` apart.
const GROUPS: usize = BLOCK / 4;
const STEPS: usize = GROUPS / 2;

/// Weights of sixteen rows in 32 columns. All methods used in products must be always inlined.
pub(crate) trait Block: Plain {
    /// Block of zeros.
    const ZERO: Self;
    /// Values, as they are multiplied.
    type Values: Values;

    fn values(&self) -> &Self::Values;
    fn d<S: Simd>(&self, simd: S) -> S::Vector;
    /// Returns the least values, if the format has any.
    fn min<S: Simd>(&self, simd: S) -> Option<S::Vector>;
    /// Dequantizes one row.
    fn row(&self, lane: usize, out: &mut [f32]);
    /// Sets one row from a block of a file. Returns false if a weight may not be finite.
    fn set(&mut self, lane: usize, bytes: &[u8]) -> bool;
}

/// Block with factors and values of these kinds, in as many bytes as in a file.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Packed<H, V> {
    head: H,
    values: V,
}

// SAFETY: all heads and values are arrays of bytes or 16-bit integers, without padding and valid for
// every bit pattern.
unsafe impl<H: Head, V: Values> Plain for Packed<H, V> {}

impl<H: Head, V: Values> Block for Packed<H, V> {
    const ZERO: Self = Self { head: H::ZERO, values: V::ZERO };

    type Values = V;

    #[inline(always)]
    fn values(&self) -> &V {
        &self.values
    }

    #[inline(always)]
    fn d<S: Simd>(&self, simd: S) -> S::Vector {
        self.head.d(simd)
    }

    #[inline(always)]
    fn min<S: Simd>(&self, simd: S) -> Option<S::Vector> {
        self.head.min(simd)
    }

    fn row(&self, lane: usize, out: &mut [f32]) {
        let (d, min) = self.head.lane(lane);
        for (column, out) in out.iter_mut().enumerate() {
            let scaled = d * self.values.value(column, lane) as f32;
            *out = min.map_or(scaled, |min| scaled + min);
        }
    }

    fn set(&mut self, lane: usize, bytes: &[u8]) -> bool {
        let (head, values) = bytes.split_at(H::BYTES);
        self.values.set(lane, values);
        self.head.set(lane, head)
    }
}

/// Adds the products of one block with `M` rows of activations to their sums. `of_x` is the sum of
/// each row's activations, `scales` their scales.
#[inline(always)]
pub(crate) fn add<S: Simd, B: Block, const M: usize>(
    simd: S,
    block: &B,
    x: [&[i8; BLOCK]; M],
    of_x: [i32; M],
    scales: [f32; M],
    sums: &mut [S::Vector; M],
) {
    let distance = distance();
    if distance > 0 {
        let ahead = std::ptr::from_ref(block).cast::<u8>().wrapping_add(distance);
        for line in (0..size_of::<B>()).step_by(64) {
            prefetch(ahead.wrapping_add(line));
        }
    }
    let counts = counted(simd, block.values(), x, of_x);
    let (d, min) = (block.d(simd), block.min(simd));
    for m in 0..M {
        let scaled = simd.multiply(d, simd.splat(scales[m]));
        sums[m] = simd.fused(simd.counted(counts[m]), scaled, sums[m]);
        if let Some(min) = min {
            sums[m] = simd.fused(min, simd.splat(scales[m] * of_x[m] as f32), sums[m]);
        }
    }
}

/// Returns the sums of a block's integer products with `M` rows.
#[inline(always)]
fn counted<S: Simd, V: Values, const M: usize>(
    simd: S,
    values: &V,
    x: [&[i8; BLOCK]; M],
    of_x: [i32; M],
) -> [S::Counts; M] {
    const ONES: [i8; LANES] = [1; LANES];
    let groups = const { at_once(S::HOLDS, V::MAX_STORED, GROUPS) };
    let steps = const { at_once(S::HOLDS, V::MAX_STORED, GROUPS).div_ceil(2) };
    let mut counts = [simd.no_counts(); M];
    for m in 0..M {
        counts[m] = simd.counts(-V::offset::<S>() * of_x[m]);
    }
    for first in (0..STEPS).step_by(steps) {
        let mut some = [simd.no_sums(); M];
        for at in first..first + steps {
            let weights = values.fours(simd, at);
            for (half, weights) in weights.into_iter().enumerate() {
                for m in 0..M {
                    let four = x[m].as_chunks::<4>().0[at + STEPS * half];
                    some[m] = V::dot(simd, weights, four, some[m]);
                }
                // A single group fits the partial sums.
                if groups == 1 && half == 0 {
                    for m in 0..M {
                        counts[m] = simd.scaled(some[m], &ONES, counts[m]);
                        some[m] = simd.no_sums();
                    }
                }
            }
        }
        for m in 0..M {
            counts[m] = simd.scaled(some[m], &ONES, counts[m]);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1};
    use crate::simd::LANES;

    #[test]
    fn a_block_has_as_many_bytes_as_sixteen_in_a_file() {
        assert_eq!(size_of::<Q4_0>(), LANES * 18);
        assert_eq!(size_of::<Q4_1>(), LANES * 20);
        assert_eq!(size_of::<Q5_0>(), LANES * 22);
        assert_eq!(size_of::<Q5_1>(), LANES * 24);
        assert_eq!(size_of::<Iq4Nl>(), LANES * 18);
        assert_eq!(size_of::<Mxfp4>(), LANES * 17);
    }
}
