//! Tiles of ggml's K-quants: blocks of 256 columns whose sub-blocks have their own scales.
//!
//! A weight is `d * scale * value + min * least`. `d` and `min` belong to the row's block and are
//! f16. `scale` and `least` are integers that belong to 16 or 32 columns. `value` is an integer of
//! two to six bits, or a level of eight bits. Products with activations are exact 32-bit integers up
//! to the multiplication by `d` and `min`.

#![expect(unsafe_code, reason = "blocks lie in memory that is not of their type")]

mod levels;
mod q2_q3;

use crate::memory::Plain;
use crate::prefetch::{distance, prefetch};
use crate::simd::{FOURS, LANES, Simd, at_once};

pub(crate) use self::levels::Iq4Xs;
pub(crate) use self::q2_q3::{Q2, Q3};

/// Columns in a block.
pub const BLOCK: usize = 256;

/// Columns in a part, the unit in which values are read.
const PART: usize = 32;

/// Sign bit of an f16.
const SIGN: u16 = 0x8000;

/// Groups of four columns in a part.
const GROUPS: usize = PART / 4;

/// Weights of sixteen rows in 256 columns. All methods used in products must be always inlined.
pub(crate) trait Block: Plain {
    /// Largest stored value, or largest magnitude if they are signed.
    const MAX_STORED: i32;
    /// Number of scales in a part.
    const SCALES: usize;
    /// Number of columns summed in each activation sum: those that share one integer factor.
    const SUMMED: usize = PART / Self::SCALES;
    /// Bytes before the values.
    const HEAD: usize = HEAD;

    /// Returns the values of one group of four columns, for both parts of a pair.
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2];
    /// Adds the four products of each row to its sum.
    #[inline(always)]
    fn dot<S: Simd>(simd: S, weights: S::Fours, x: [i8; 4], sums: S::Sums) -> S::Sums {
        simd.dot(weights, x, sums)
    }
    /// Returns one of a part's scales for the sixteen rows.
    fn scales(&self, part: usize, index: usize) -> &[i8; LANES];
    fn d<S: Simd>(&self, simd: S) -> S::Vector;
    /// Subtracts the constant offset of the values.
    fn offset<S: Simd>(&self, simd: S, counts: S::Counts, sums: &[i16]) -> S::Counts;
    /// Adds the term that does not depend on the values.
    fn least<S: Simd>(&self, simd: S, sums: &[i16], scale: S::Vector, sum: S::Vector) -> S::Vector;
    /// Dequantizes one row.
    fn row(&self, lane: usize, out: &mut [f32; BLOCK]);
    /// Sets one row.
    fn set(&mut self, lane: usize, row: &Row<'_>);
}

/// Bytes before the values of most blocks.
const HEAD: usize = size_of::<Head>();
const _: () = assert!(std::mem::offset_of!(Q4, values) == HEAD);
const _: () = assert!(std::mem::offset_of!(Q5, values) == HEAD);
const _: () = assert!(std::mem::offset_of!(Q6, values) == HEAD);

/// Block of one row, with the fields of the formula in the module documentation.
pub(crate) struct Row<'a> {
    pub(crate) d: u16,
    /// Factor of the least values, not negated yet.
    pub(crate) min: u16,
    pub(crate) scales: &'a [i8; 16],
    pub(crate) least: &'a [i8; 16],
    pub(crate) values: &'a [u8; BLOCK],
}

/// Q4_K: four-bit values; each 32 columns have a six-bit scale and a six-bit least value.
pub(crate) type Q4 = WithLeast<Halves>;

/// Q5_K: as Q4_K, with five-bit values.
pub(crate) type Q5 = WithLeast<Fives>;

/// Block whose parts have least values.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WithLeast<V> {
    head: Head,
    values: V,
}

/// Storage of unsigned values. All methods that take a `simd` must be always inlined.
pub(crate) trait Values {
    /// Largest value.
    const MAX_STORED: i32;

    /// Returns the values of one group of four columns, for both parts of a pair.
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2];
    /// Returns the value of one row in a column.
    fn value(&self, column: usize, lane: usize) -> u8;
    /// Sets a value that is still zero.
    fn set(&mut self, column: usize, lane: usize, value: u8);
}

/// Four-bit values: of each pair of parts, the first in the low nibbles and the second in the high
/// nibbles.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Halves([[[u8; FOURS]; GROUPS]; 4]);

/// Five-bit values of each pair of parts.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Fives([[FourFives; 2]; 4]);

/// Values of four groups of columns, for both parts of a pair.
#[derive(Clone, Copy)]
#[repr(C)]
struct FourFives {
    /// Lower four bits: the first part in the low nibbles, the second in the high ones.
    low: [[u8; FOURS]; 4],
    /// Fifth bits: those of the first part in the low nibbles, each group in a bit of its own.
    high: [u8; FOURS],
}

/// Scales and least values of a block.
#[derive(Clone, Copy)]
#[repr(C)]
struct Head {
    d: [u16; LANES],
    /// Negated factor of the least values: zero or less.
    min: [u16; LANES],
    scales: [[i8; LANES]; 8],
    least: [[i8; LANES]; 8],
}

/// Q6_K: six-bit values with an offset of 32; each 16 columns have an eight-bit scale.
pub(crate) type Q6 = WithOffset<Quads>;

/// Block whose values have an offset; each 16 columns have a signed scale.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WithOffset<V> {
    /// f32, so that the block size is a multiple of the cache line.
    d: [f32; LANES],
    scales: [[i8; LANES]; 16],
    values: V,
}

/// Values with an offset, a power of two.
pub(crate) trait Raised: Values {
    const OFFSET: i32;

    /// Returns `counts` less the offset times `scaled`.
    fn less<S: Simd>(simd: S, counts: S::Counts, scaled: S::Counts) -> S::Counts;
}

/// Six-bit values of each pair of parts.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Quads([[Quad; GROUPS / 2]; 4]);

/// Values of two groups of columns, for both parts of a pair, stored side by side. Reading a block
/// in two places at once would break the sequential stream and take twice the time.
#[derive(Clone, Copy)]
#[repr(C)]
struct Quad {
    /// Lower four bits of each group: the first part in the low nibbles, the second in the high
    /// ones.
    low: [[u8; FOURS]; 2],
    /// Upper two bits of all four.
    high: [u8; FOURS],
}

// SAFETY: integers without padding, valid for every bit pattern.
unsafe impl Plain for Q4 {}
// SAFETY: as above.
unsafe impl Plain for Q5 {}
// SAFETY: integers and f32 without padding, valid for every bit pattern.
unsafe impl Plain for Q6 {}

/// Adds the products of one block with `M` rows of activations to their sums.
#[inline(always)]
pub(crate) fn add<S: Simd, B: Block, const M: usize>(
    simd: S,
    block: &B,
    x: [&[i8; BLOCK]; M],
    of_x: [&[i16]; M],
    scales: [f32; M],
    sums: &mut [S::Vector; M],
) {
    // The head is prefetched line by line before its parts are used out of order, so that the
    // processor sees the matrix as one stream.
    for line in (0..B::HEAD).step_by(64) {
        prefetch(std::ptr::from_ref(block).cast::<u8>().wrapping_add(line));
    }
    // Each iteration prefetches an equal share of the lines that lie `distance` bytes ahead.
    let asked = const {
        let turns = BLOCK / PART / 2 * GROUPS / groups_at_once::<S, B>();
        (size_of::<B>() / 64).div_ceil(turns)
    };
    let at_once = const { groups_at_once::<S, B>() };
    let distance = distance();
    let mut ahead = std::ptr::from_ref(block).cast::<u8>().wrapping_add(distance);
    let mut counts = [simd.no_counts(); M];
    for pair in 0..BLOCK / PART / 2 {
        for first in (0..GROUPS).step_by(at_once) {
            if distance > 0 {
                for _ in 0..asked {
                    prefetch(ahead);
                    ahead = ahead.wrapping_add(64);
                }
            }
            let mut some = [[simd.no_sums(); M]; 2];
            for group in first..first + at_once {
                let weights = block.fours(simd, pair, group);
                for half in 0..2 {
                    for m in 0..M {
                        let four = x[m].as_chunks::<4>().0[(2 * pair + half) * GROUPS + group];
                        some[half][m] = B::dot(simd, weights[half], four, some[half][m]);
                    }
                }
            }
            for (half, some) in some.iter().enumerate() {
                let scales = block.scales(2 * pair + half, first * B::SCALES / GROUPS);
                for m in 0..M {
                    counts[m] = simd.scaled(some[m], scales, counts[m]);
                }
            }
        }
    }
    let d = block.d(simd);
    for m in 0..M {
        let scale = simd.splat(scales[m]);
        let counts = block.offset(simd, counts[m], of_x[m]);
        sums[m] = simd.fused(simd.counted(counts), simd.multiply(d, scale), sums[m]);
        sums[m] = block.least(simd, of_x[m], scale, sums[m]);
    }
}

/// Returns, for each row, the sum of its `N` integers times the activation sums.
#[inline(always)]
fn times<S: Simd, const N: usize>(simd: S, x: &[[i8; LANES]; N], sums: &[i16]) -> S::Counts {
    let mut counts = simd.no_counts();
    // With the length known here, the loop needs no bounds checks.
    let Some(sums) = sums.first_chunk::<N>() else { return counts };
    for ([first, second], sums) in x.as_chunks().0.iter().zip(sums.as_chunks().0) {
        counts = simd.two([first, second], *sums, counts);
    }
    counts
}

/// Returns how many groups share a scale and have products that fit a tier's partial sums.
const fn groups_at_once<S: Simd, B: Block>() -> usize {
    at_once(S::HOLDS, B::MAX_STORED, GROUPS / B::SCALES)
}

impl<V: Values> Block for WithLeast<V>
where
    Self: Plain,
{
    const MAX_STORED: i32 = V::MAX_STORED;
    const SCALES: usize = 1;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        self.values.fours(simd, pair, group)
    }

    #[inline(always)]
    fn scales(&self, part: usize, _: usize) -> &[i8; LANES] {
        &self.head.scales[part]
    }

    #[inline(always)]
    fn d<S: Simd>(&self, simd: S) -> S::Vector {
        simd.halves(&self.head.d)
    }

    #[inline(always)]
    fn offset<S: Simd>(&self, _: S, counts: S::Counts, _: &[i16]) -> S::Counts {
        counts
    }

    #[inline(always)]
    fn least<S: Simd>(&self, simd: S, sums: &[i16], scale: S::Vector, sum: S::Vector) -> S::Vector {
        let counts = times(simd, &self.head.least, sums);
        let min = simd.multiply(simd.halves(&self.head.min), scale);
        simd.fused(simd.counted(counts), min, sum)
    }

    fn row(&self, lane: usize, out: &mut [f32; BLOCK]) {
        let Head { d, min, scales, least } = &self.head;
        let [d, min] = [d, min].map(|all| half::f16::from_bits(all[lane]).to_f32());
        for (column, out) in out.iter_mut().enumerate() {
            let part = column / PART;
            let scaled = d * f32::from(scales[part][lane]);
            let value = f32::from(self.values.value(column, lane));
            *out = scaled * value + min * f32::from(least[part][lane]);
        }
    }

    fn set(&mut self, lane: usize, row: &Row<'_>) {
        let head = &mut self.head;
        (head.d[lane], head.min[lane]) = (row.d, row.min ^ SIGN);
        for part in 0..8 {
            (head.scales[part][lane], head.least[part][lane]) = (row.scales[part], row.least[part]);
        }
        for (column, value) in row.values.iter().enumerate() {
            self.values.set(column, lane, *value);
        }
    }
}

impl Values for Halves {
    const MAX_STORED: i32 = 15;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        let both = simd.fours(&self.0[pair][group]);
        [simd.low(both), simd.high(both)]
    }

    fn value(&self, column: usize, lane: usize) -> u8 {
        let (pair, second, group, at) = place(column, lane);
        self.0[pair][group][at] >> (4 * second) & 15
    }

    fn set(&mut self, column: usize, lane: usize, value: u8) {
        let (pair, second, group, at) = place(column, lane);
        self.0[pair][group][at] |= value << (4 * second);
    }
}

impl Values for Fives {
    const MAX_STORED: i32 = 31;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        let FourFives { low, high } = &self.0[pair][group / 4];
        let both = simd.fours(&low[group % 4]);
        simd.upper::<4>(group % 4, [simd.low(both), simd.high(both)], simd.fours(high))
    }

    fn value(&self, column: usize, lane: usize) -> u8 {
        let (pair, second, group, at) = place(column, lane);
        let FourFives { low, high } = &self.0[pair][group / 4];
        let fifth = high[at] >> (4 * second + group % 4) & 1;
        low[group % 4][at] >> (4 * second) & 15 | fifth << 4
    }

    fn set(&mut self, column: usize, lane: usize, value: u8) {
        let (pair, second, group, at) = place(column, lane);
        let FourFives { low, high } = &mut self.0[pair][group / 4];
        low[group % 4][at] |= (value & 15) << (4 * second);
        high[at] |= value >> 4 << (4 * second + group % 4);
    }
}

impl<V: Raised> Block for WithOffset<V>
where
    Self: Plain,
{
    const MAX_STORED: i32 = V::MAX_STORED;
    const SCALES: usize = 2;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        self.values.fours(simd, pair, group)
    }

    #[inline(always)]
    fn scales(&self, part: usize, index: usize) -> &[i8; LANES] {
        &self.scales[2 * part + index]
    }

    #[inline(always)]
    fn d<S: Simd>(&self, simd: S) -> S::Vector {
        simd.load(&self.d)
    }

    #[inline(always)]
    fn offset<S: Simd>(&self, simd: S, counts: S::Counts, sums: &[i16]) -> S::Counts {
        V::less(simd, counts, times(simd, &self.scales, sums))
    }

    #[inline(always)]
    fn least<S: Simd>(&self, _: S, _: &[i16], _: S::Vector, sum: S::Vector) -> S::Vector {
        sum
    }

    fn row(&self, lane: usize, out: &mut [f32; BLOCK]) {
        for (column, out) in out.iter_mut().enumerate() {
            let scaled = self.d[lane] * f32::from(self.scales[column / Self::SUMMED][lane]);
            let value = i32::from(self.values.value(column, lane)) - V::OFFSET;
            *out = scaled * value as f32;
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

impl Values for Quads {
    const MAX_STORED: i32 = 63;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        let quad = &self.0[pair][group / 2];
        let (both, bits) = (simd.fours(&quad.low[group % 2]), simd.fours(&quad.high));
        let (first, second) = (simd.low(both), simd.high(both));
        if group.is_multiple_of(2) {
            [simd.six::<0>(first, bits), simd.six::<4>(second, bits)]
        } else {
            [simd.six::<2>(first, bits), simd.six::<6>(second, bits)]
        }
    }

    fn value(&self, column: usize, lane: usize) -> u8 {
        let (pair, second, group, at) = place(column, lane);
        let quad = &self.0[pair][group / 2];
        let low = quad.low[group % 2][at] >> (4 * second) & 15;
        low | (quad.high[at] >> of_two(second, group) & 3) << 4
    }

    fn set(&mut self, column: usize, lane: usize, value: u8) {
        let (pair, second, group, at) = place(column, lane);
        let quad = &mut self.0[pair][group / 2];
        quad.low[group % 2][at] |= (value & 15) << (4 * second);
        quad.high[at] |= value >> 4 << of_two(second, group);
    }
}

impl Raised for Quads {
    const OFFSET: i32 = 32;

    #[inline(always)]
    fn less<S: Simd>(simd: S, counts: S::Counts, scaled: S::Counts) -> S::Counts {
        simd.less::<5>(counts, scaled)
    }
}

/// Returns the position of two bits in a byte that has those of two groups, for both parts of a pair.
fn of_two(second: usize, group: usize) -> usize {
    4 * second + 2 * (group % 2)
}

/// Returns the location of a weight: pair of parts, index within the pair, group, and byte for the
/// row.
fn place(column: usize, lane: usize) -> (usize, usize, usize, usize) {
    let (part, k) = (column / PART, column % PART);
    (part / 2, part % 2, k / 4, 4 * lane + k % 4)
}
