//! Tiles of IQ4_XS: blocks of 256 columns whose values are levels.

use super::{BLOCK, Block, Halves, PART, Row, Values, times};
use crate::blocks32::{LEVELS, raised};
use crate::memory::Plain;
use crate::simd::{LANES, Simd};

/// IQ4_XS: places in [`LEVELS`]; each 32 columns have a scale from -32 to 31.
///
/// The sum of a block's products is below 256 * 32 * 241 * 127, so below 2^28.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Iq4Xs {
    /// f32, so that the block size is a multiple of the cache line.
    d: [f32; LANES],
    scales: [[i8; LANES]; 8],
    values: Halves,
}

// SAFETY: bytes and f32 without padding, valid for every bit pattern.
unsafe impl Plain for Iq4Xs {}

impl Block for Iq4Xs {
    const MAX_STORED: i32 = 127;
    const SCALES: usize = 1;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        let [first, second] = self.values.fours(simd, pair, group);
        let table = const { &raised(LEVELS, S::RAISED) };
        [simd.looked_up(table, first), simd.looked_up(table, second)]
    }

    #[inline(always)]
    fn dot<S: Simd>(simd: S, weights: S::Fours, x: [i8; 4], sums: S::Sums) -> S::Sums {
        simd.signed_dot(weights, x, sums)
    }

    #[inline(always)]
    fn scales(&self, part: usize, _: usize) -> &[i8; LANES] {
        &self.scales[part]
    }

    #[inline(always)]
    fn d<S: Simd>(&self, simd: S) -> S::Vector {
        simd.load(&self.d)
    }

    #[inline(always)]
    fn offset<S: Simd>(&self, simd: S, counts: S::Counts, sums: &[i16]) -> S::Counts {
        if S::RAISED == 0 {
            return counts;
        }
        const { assert!(S::RAISED == 0 || S::RAISED == 1 << 7) };
        simd.less::<7>(counts, times(simd, &self.scales, sums))
    }

    #[inline(always)]
    fn least<S: Simd>(&self, _: S, _: &[i16], _: S::Vector, sum: S::Vector) -> S::Vector {
        sum
    }

    fn row(&self, lane: usize, out: &mut [f32; BLOCK]) {
        for (column, out) in out.iter_mut().enumerate() {
            let scaled = self.d[lane] * f32::from(self.scales[column / PART][lane]);
            let place = self.values.value(column, lane);
            *out = scaled * f32::from(LEVELS[usize::from(place)]);
        }
    }

    fn set(&mut self, lane: usize, row: &Row<'_>) {
        self.d[lane] = half::f16::from_bits(row.d).to_f32();
        for (scales, scale) in self.scales.iter_mut().zip(row.scales) {
            scales[lane] = *scale;
        }
        for (column, value) in row.values.iter().enumerate() {
            self.values.set(column, lane, *value);
        }
    }
}
