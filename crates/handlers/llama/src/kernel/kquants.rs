//! Tiles of ggml's K-quants: blocks of 256 columns whose parts have scales of their own.
//!
//! A weight is `d * scale * value + min * least`: `d` and `min` of the row's block, in f16; `scale`
//! and `least` of 16 or 32 columns, integers; `value` an integer of four to six bits. Products with
//! activations are exact in 32 bits until `d` and `min`.

#![expect(unsafe_code, reason = "blocks lie in memory that is not of their type")]

use super::reach::reach;
use super::simd::{FOURS, Simd};
use super::{LANES, ask};
use crate::memory::Plain;

/// Columns of a block.
pub(crate) const BLOCK: usize = 256;

/// Columns whose values are read together.
const PART: usize = 32;

/// Fours of columns in a part.
const GROUPS: usize = PART / 4;

/// Sixteen rows' weights of 256 columns. All methods are inlined always.
pub(crate) trait Block: Plain {
    /// The largest value.
    const LARGEST: i32;
    /// Scales of a part's columns.
    const SCALES: usize;
    /// Columns that have a sum of activations: as many as have an integer that those are multiplied
    /// by.
    const SUMMED: usize = PART / Self::SCALES;

    /// The values of four columns, the group, of each part of a pair.
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2];
    /// A part's.
    fn scales(&self, part: usize, index: usize) -> &[i8; LANES];
    fn d<S: Simd>(&self, simd: S) -> S::Vector;
    /// What values are less by.
    fn offset<S: Simd>(&self, simd: S, counts: S::Counts, sums: &[i16]) -> S::Counts;
    /// Adds what does not depend on the values.
    fn least<S: Simd>(&self, simd: S, sums: &[i16], scale: S::Vector, sum: S::Vector) -> S::Vector;
    /// A row in numbers.
    fn row(&self, lane: usize, out: &mut [f32; BLOCK]);
    /// Sets a row.
    fn set(&mut self, lane: usize, row: &Row<'_>);
}

/// Bytes before the values of a block.
const HEAD: usize = size_of::<Head>();
const _: () = assert!(std::mem::offset_of!(Q4, values) == HEAD);
const _: () = assert!(std::mem::offset_of!(Q5, values) == HEAD);
const _: () = assert!(std::mem::offset_of!(Q6, quads) == HEAD);

/// One row's block: see the module.
pub(crate) struct Row<'a> {
    pub(crate) d: u16,
    /// Not negated yet.
    pub(crate) min: u16,
    pub(crate) scales: &'a [i8; 16],
    pub(crate) least: &'a [i8; 8],
    pub(crate) values: &'a [u8; BLOCK],
}

/// Q4_K: four bits, and parts of 32 columns with a scale and a least value of six bits.
pub(crate) type Q4 = WithLeast<Halves>;

/// Q5_K: the same with five bits, a byte each.
pub(crate) type Q5 = WithLeast<Bytes>;

/// A block whose parts have least values.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WithLeast<V> {
    head: Head,
    values: V,
}

/// Values that are zero or more. All methods that take a `simd` are inlined always.
pub(crate) trait Values {
    /// The largest.
    const LARGEST: i32;

    /// Those of four columns, the group, of each part of a pair.
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2];
    /// A row's.
    fn value(&self, column: usize, lane: usize) -> u8;
    /// Sets one that is zero.
    fn set(&mut self, column: usize, lane: usize, value: u8);
}

/// Two parts' values, one after the other, in the lower and the upper halves.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Halves([[[u8; FOURS]; GROUPS]; 4]);

/// A byte for each value, two parts' in turns.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bytes([[[[u8; FOURS]; 2]; GROUPS]; 4]);

/// Scales and least values.
#[derive(Clone, Copy)]
#[repr(C)]
struct Head {
    d: [u16; LANES],
    /// What the least values are multiplied by: zero or less.
    min: [u16; LANES],
    scales: [[i8; LANES]; 8],
    least: [[i8; LANES]; 8],
}

/// Q6_K: six bits less 32, and parts of 16 columns with a scale of eight bits.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q6 {
    /// In f32, so that a block fills cache lines.
    d: [f32; LANES],
    /// Of each 16 columns.
    scales: [[i8; LANES]; 16],
    /// Of each pair of parts.
    quads: [[Quad; GROUPS / 2]; 4],
}

/// Values of two groups of a part, and of the same two of the next, side by side: a block that is read
/// in two places at once is no stream, and takes twice the time.
#[derive(Clone, Copy)]
#[repr(C)]
struct Quad {
    /// The lower four bits of a group: of one part in the lower halves, of the next in the upper ones.
    low: [[u8; FOURS]; 2],
    /// The upper two bits of all four.
    high: [u8; FOURS],
}

// SAFETY: integers without gaps between them.
unsafe impl Plain for Q4 {}
// SAFETY: as above.
unsafe impl Plain for Q5 {}
// SAFETY: integers and numbers without gaps between them.
unsafe impl Plain for Q6 {}

/// Adds the products of a block with `M` rows of activations to their sums.
#[inline(always)]
pub(crate) fn add<S: Simd, B: Block, const M: usize>(
    simd: S,
    block: &B,
    x: [&[i8; BLOCK]; M],
    of_x: [&[i16]; M],
    scales: [f32; M],
    sums: &mut [S::Vector; M],
) {
    // Line by line, before its parts are used out of turn: to the processor a matrix is then one stream.
    for line in (0..HEAD).step_by(64) {
        ask(std::ptr::from_ref(block).cast::<u8>().wrapping_add(line));
    }
    // What lies ahead in as many stretches as there are turns.
    let asked = const {
        let turns = BLOCK / PART / 2 * GROUPS / at_once::<S, B>();
        (size_of::<B>() / 64).div_ceil(turns)
    };
    let at_once = const { at_once::<S, B>() };
    let reach = reach();
    let mut ahead = std::ptr::from_ref(block).cast::<u8>().wrapping_add(reach);
    let mut counts = [simd.no_counts(); M];
    for pair in 0..BLOCK / PART / 2 {
        for first in (0..GROUPS).step_by(at_once) {
            if reach > 0 {
                for _ in 0..asked {
                    ask(ahead);
                    ahead = ahead.wrapping_add(64);
                }
            }
            let mut some = [[simd.no_sums(); M]; 2];
            for group in first..first + at_once {
                let weights = block.fours(simd, pair, group);
                for half in 0..2 {
                    for m in 0..M {
                        let four = x[m].as_chunks::<4>().0[(2 * pair + half) * GROUPS + group];
                        some[half][m] = simd.dot(weights[half], four, some[half][m]);
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

/// Each row's sum of its integers times the activations' sums, of which there are as many.
#[inline(always)]
fn times<S: Simd, const N: usize>(simd: S, x: &[[i8; LANES]; N], sums: &[i16]) -> S::Counts {
    let mut counts = simd.no_counts();
    // Known to be so long, nobody looks at lengths on the way.
    let Some(sums) = sums.first_chunk::<N>() else { return counts };
    for ([first, second], sums) in x.as_chunks().0.iter().zip(sums.as_chunks().0) {
        counts = simd.two([first, second], *sums, counts);
    }
    counts
}

/// As many groups as a tier can hold the products of, and a scale is for.
const fn at_once<S: Simd, B: Block>() -> usize {
    let mut groups = GROUPS / B::SCALES;
    while groups as i32 > S::HOLDS / (4 * 127 * B::LARGEST) {
        groups /= 2;
    }
    groups
}

impl<V: Values> Block for WithLeast<V>
where
    Self: Plain,
{
    const LARGEST: i32 = V::LARGEST;
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
        const SIGN: u16 = 0x8000;
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
    const LARGEST: i32 = 15;

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

impl Values for Bytes {
    const LARGEST: i32 = 31;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        let [first, second] = &self.0[pair][group];
        [simd.fours(first), simd.fours(second)]
    }

    fn value(&self, column: usize, lane: usize) -> u8 {
        let (pair, second, group, at) = place(column, lane);
        self.0[pair][group][second][at]
    }

    fn set(&mut self, column: usize, lane: usize, value: u8) {
        let (pair, second, group, at) = place(column, lane);
        self.0[pair][group][second][at] = value;
    }
}

impl Block for Q6 {
    const LARGEST: i32 = 63;
    const SCALES: usize = 2;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        let quad = &self.quads[pair][group / 2];
        let (both, bits) = (simd.fours(&quad.low[group % 2]), simd.fours(&quad.high));
        let (first, second) = (simd.low(both), simd.high(both));
        if group.is_multiple_of(2) {
            [simd.six::<0>(first, bits), simd.six::<4>(second, bits)]
        } else {
            [simd.six::<2>(first, bits), simd.six::<6>(second, bits)]
        }
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
        simd.less_32(counts, times(simd, &self.scales, sums))
    }

    #[inline(always)]
    fn least<S: Simd>(&self, _: S, _: &[i16], _: S::Vector, sum: S::Vector) -> S::Vector {
        sum
    }

    fn row(&self, lane: usize, out: &mut [f32; BLOCK]) {
        for (column, out) in out.iter_mut().enumerate() {
            let (pair, second, group, at) = place(column, lane);
            let quad = &self.quads[pair][group / 2];
            let low = quad.low[group % 2][at] >> (4 * second) & 15;
            let shift = 4 * second + 2 * (group % 2);
            let high = quad.high[at] >> shift & 3;
            let value = i32::from(low | high << 4) - 32;
            *out =
                self.d[lane] * f32::from(self.scales[column / Self::SUMMED][lane]) * value as f32;
        }
    }

    fn set(&mut self, lane: usize, row: &Row<'_>) {
        self.d[lane] = half::f16::from_bits(row.d).to_f32();
        for (scales, scale) in self.scales.iter_mut().zip(row.scales) {
            scales[lane] = *scale;
        }
        for (column, value) in row.values.iter().enumerate() {
            let (pair, second, group, at) = place(column, lane);
            let quad = &mut self.quads[pair][group / 2];
            quad.low[group % 2][at] |= (value & 15) << (4 * second);
            let shift = 4 * second + 2 * (group % 2);
            quad.high[at] |= value >> 4 << shift;
        }
    }
}

/// Where a column's value lies: its pair of parts, whether it is in the second one, its group, and
/// its byte for a row.
fn place(column: usize, lane: usize) -> (usize, usize, usize, usize) {
    let (part, k) = (column / PART, column % PART);
    (part / 2, part % 2, k / 4, 4 * lane + k % 4)
}
