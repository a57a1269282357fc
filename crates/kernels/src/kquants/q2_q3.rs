//! Tiles of Q2_K and Q3_K: values of two and three bits, whose lower two bits share a byte with those
//! of three other columns.

use super::{BLOCK, Block, GROUPS, Raised, Row, SIGN, Values, WithOffset, of_two, place, times};
use crate::memory::Plain;
use crate::simd::{FOURS, LANES, Simd};

/// Lower two bits of the values of two groups of columns, for both parts of a pair.
type Twos = [u8; FOURS];

/// Q2_K: two-bit values; each 16 columns have a four-bit scale and a four-bit least value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q2 {
    d: [u16; LANES],
    /// Negated factor of the least values.
    min: [u16; LANES],
    scales: [[i8; LANES]; 16],
    least: [[i8; LANES]; 16],
    values: [[Twos; GROUPS / 2]; 4],
}

/// Q3_K: three-bit values with an offset of 4; each 16 columns have a scale from -32 to 31.
pub(crate) type Q3 = WithOffset<Threes>;

/// Three-bit values of each pair of parts.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Threes([[Half; 2]; 4]);

/// Values of four groups of columns, for both parts of a pair.
#[derive(Clone, Copy)]
#[repr(C)]
struct Half {
    low: [Twos; 2],
    /// Third bits: those of the first part in the low nibbles, each group in a bit of its own.
    high: [u8; FOURS],
}

// SAFETY: integers without padding, valid for every bit pattern.
unsafe impl Plain for Q2 {}
// SAFETY: integers and f32 without padding, valid for every bit pattern.
unsafe impl Plain for Q3 {}

/// Returns the lower two bits of the values of one group, for both parts of a pair.
#[inline(always)]
fn twos<S: Simd>(simd: S, twos: &Twos, group: usize) -> [S::Fours; 2] {
    let bits = simd.fours(twos);
    if group.is_multiple_of(2) {
        [simd.two_bits::<0>(bits), simd.two_bits::<4>(bits)]
    } else {
        [simd.two_bits::<2>(bits), simd.two_bits::<6>(bits)]
    }
}

impl Block for Q2 {
    const MAX_STORED: i32 = 3;
    const SCALES: usize = 2;
    const HEAD: usize = std::mem::offset_of!(Self, values);

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        twos(simd, &self.values[pair][group / 2], group)
    }

    #[inline(always)]
    fn scales(&self, part: usize, index: usize) -> &[i8; LANES] {
        &self.scales[2 * part + index]
    }

    #[inline(always)]
    fn d<S: Simd>(&self, simd: S) -> S::Vector {
        simd.halves(&self.d)
    }

    #[inline(always)]
    fn offset<S: Simd>(&self, _: S, counts: S::Counts, _: &[i16]) -> S::Counts {
        counts
    }

    #[inline(always)]
    fn least<S: Simd>(&self, simd: S, sums: &[i16], scale: S::Vector, sum: S::Vector) -> S::Vector {
        let counts = times(simd, &self.least, sums);
        let min = simd.multiply(simd.halves(&self.min), scale);
        simd.fused(simd.counted(counts), min, sum)
    }

    fn row(&self, lane: usize, out: &mut [f32; BLOCK]) {
        let [d, min] = [&self.d, &self.min].map(|all| half::f16::from_bits(all[lane]).to_f32());
        for (column, out) in out.iter_mut().enumerate() {
            let (pair, second, group, at) = place(column, lane);
            let value = self.values[pair][group / 2][at] >> of_two(second, group) & 3;
            let [scale, least] =
                [&self.scales, &self.least].map(|all| f32::from(all[column / Self::SUMMED][lane]));
            *out = d * scale * f32::from(value) + min * least;
        }
    }

    fn set(&mut self, lane: usize, row: &Row<'_>) {
        (self.d[lane], self.min[lane]) = (row.d, row.min ^ SIGN);
        for (at, (scale, least)) in row.scales.iter().zip(row.least).enumerate() {
            (self.scales[at][lane], self.least[at][lane]) = (*scale, *least);
        }
        for (column, value) in row.values.iter().enumerate() {
            let (pair, second, group, at) = place(column, lane);
            self.values[pair][group / 2][at] |= value << of_two(second, group);
        }
    }
}

impl Values for Threes {
    const MAX_STORED: i32 = 7;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        let half = &self.0[pair][group / 4];
        let low = twos(simd, &half.low[group % 4 / 2], group);
        simd.upper::<2>(group % 4, low, simd.fours(&half.high))
    }

    fn value(&self, column: usize, lane: usize) -> u8 {
        let (pair, second, group, at) = place(column, lane);
        let half = &self.0[pair][group / 4];
        let low = half.low[group % 4 / 2][at] >> of_two(second, group) & 3;
        low | (half.high[at] >> (4 * second + group % 4) & 1) << 2
    }

    fn set(&mut self, column: usize, lane: usize, value: u8) {
        let (pair, second, group, at) = place(column, lane);
        let half = &mut self.0[pair][group / 4];
        half.low[group % 4 / 2][at] |= (value & 3) << of_two(second, group);
        half.high[at] |= value >> 2 << (4 * second + group % 4);
    }
}

impl Raised for Threes {
    const OFFSET: i32 = 4;

    #[inline(always)]
    fn less<S: Simd>(simd: S, counts: S::Counts, scaled: S::Counts) -> S::Counts {
        simd.less::<2>(counts, scaled)
    }
}
