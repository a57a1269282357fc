//! Tiles of ggml's K-quants: blocks of 256 columns whose parts have scales of their own.
//!
//! A weight is `d * scale * value + min * least`: `d` and `min` of the row's block, in f16; `scale`
//! and `least` of 16 or 32 columns, integers; `value` an integer of four to six bits. Products with
//! activations are exact in 32 bits until `d` and `min`.

#![expect(unsafe_code, reason = "blocks lie in memory that is not of their type")]

use super::simd::{FOURS, Simd};
use super::{LANES, ask};
use crate::memory::Plain;

/// Columns of a block.
pub(crate) const BLOCK: usize = 256;

/// Tiles whose blocks take turns in memory, the first of each and then the second: activations that a
/// core holds are multiplied with so many blocks before others take their place. Brought back for
/// each tile, they would come between the core and its stream of weights.
pub(crate) const TILES: usize = 4;

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
const _: () = assert!(std::mem::offset_of!(Q6, low) == HEAD);

/// Where a tile's blocks are, of so many tiles that have `count` each: the first, and from one to the
/// next.
pub(crate) fn turns(tile: usize, tiles: usize, count: usize) -> (usize, usize) {
    let (first, beside) = beside(tile, tiles);
    (first * count + tile - first, beside)
}

/// The tiles that a tile takes turns with, itself among them: the first, and how many they are.
pub(crate) fn beside(tile: usize, tiles: usize) -> (usize, usize) {
    let first = tile / TILES * TILES;
    (first, TILES.min(tiles - first))
}

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
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q4 {
    pub(crate) head: Head,
    /// Two parts' values, one after the other, in the lower and the upper halves.
    pub(crate) values: [[[u8; FOURS]; GROUPS]; 4],
}

/// Q5_K: the same with five bits, a byte each.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q5 {
    pub(crate) head: Head,
    pub(crate) values: [[[u8; FOURS]; GROUPS]; 8],
}

/// Scales and least values.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) d: [u16; LANES],
    /// What the least values are multiplied by: zero or less.
    pub(crate) min: [u16; LANES],
    pub(crate) scales: [[i8; LANES]; 8],
    pub(crate) least: [[i8; LANES]; 8],
}

/// Q6_K: six bits less 32, and parts of 16 columns with a scale of eight bits.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q6 {
    /// In f32, so that a block fills cache lines.
    pub(crate) d: [f32; LANES],
    /// Of each 16 columns.
    pub(crate) scales: [[i8; LANES]; 16],
    /// The lower four bits: two parts' values, in the lower and the upper halves.
    pub(crate) low: [[[u8; FOURS]; GROUPS]; 4],
    /// The upper two bits of four groups: two of a part, and two of the next.
    pub(crate) high: [[[u8; FOURS]; GROUPS / 2]; 4],
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
    // Line by line, before its parts are used out of turn: to the processor a matrix is then one
    // stream, which it brings by itself, a quarter faster than when it is asked for each line ahead.
    for line in (0..HEAD).step_by(64) {
        ask(std::ptr::from_ref(block).cast::<u8>().wrapping_add(line));
    }
    let mut counts = [simd.no_counts(); M];
    for pair in 0..BLOCK / PART / 2 {
        let at_once = const { at_once::<S, B>() };
        for first in (0..GROUPS).step_by(at_once) {
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

impl Head {
    #[inline(always)]
    fn least<S: Simd>(&self, simd: S, sums: &[i16], scale: S::Vector, sum: S::Vector) -> S::Vector {
        let counts = times(simd, &self.least, sums);
        let min = simd.multiply(simd.halves(&self.min), scale);
        simd.fused(simd.counted(counts), min, sum)
    }

    fn set(&mut self, lane: usize, row: &Row<'_>) {
        const SIGN: u16 = 0x8000;
        (self.d[lane], self.min[lane]) = (row.d, row.min ^ SIGN);
        for part in 0..8 {
            (self.scales[part][lane], self.least[part][lane]) = (row.scales[part], row.least[part]);
        }
    }

    fn row(&self, lane: usize, out: &mut [f32; BLOCK], value: impl Fn(usize) -> u8) {
        let [d, min] = [self.d, self.min].map(|all| half::f16::from_bits(all[lane]).to_f32());
        for (column, out) in out.iter_mut().enumerate() {
            let part = column / PART;
            let least = f32::from(self.least[part][lane]);
            let scaled = d * f32::from(self.scales[part][lane]);
            *out = scaled * f32::from(value(column)) + min * least;
        }
    }
}

impl Block for Q4 {
    const LARGEST: i32 = 15;
    const SCALES: usize = 1;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        let both = simd.fours(&self.values[pair][group]);
        [simd.low(both), simd.high(both)]
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
        self.head.least(simd, sums, scale, sum)
    }

    fn row(&self, lane: usize, out: &mut [f32; BLOCK]) {
        self.head.row(lane, out, |column| {
            let (pair, second, group, at) = place(column, lane);
            self.values[pair][group][at] >> (4 * second) & 15
        });
    }

    fn set(&mut self, lane: usize, row: &Row<'_>) {
        self.head.set(lane, row);
        for (column, value) in row.values.iter().enumerate() {
            let (pair, second, group, at) = place(column, lane);
            self.values[pair][group][at] |= value << (4 * second);
        }
    }
}

impl Block for Q5 {
    const LARGEST: i32 = 31;
    const SCALES: usize = 1;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        let [first, second] = [&self.values[2 * pair], &self.values[2 * pair + 1]];
        [simd.fours(&first[group]), simd.fours(&second[group])]
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
        self.head.least(simd, sums, scale, sum)
    }

    fn row(&self, lane: usize, out: &mut [f32; BLOCK]) {
        self.head.row(lane, out, |column| {
            let (pair, second, group, at) = place(column, lane);
            self.values[2 * pair + second][group][at]
        });
    }

    fn set(&mut self, lane: usize, row: &Row<'_>) {
        self.head.set(lane, row);
        for (column, value) in row.values.iter().enumerate() {
            let (pair, second, group, at) = place(column, lane);
            self.values[2 * pair + second][group][at] = *value;
        }
    }
}

impl Block for Q6 {
    const LARGEST: i32 = 63;
    const SCALES: usize = 2;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, pair: usize, group: usize) -> [S::Fours; 2] {
        let (low, high) = (&self.low[pair][group], &self.high[pair][group / 2]);
        let (both, bits) = (simd.fours(low), simd.fours(high));
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
            let low = self.low[pair][group][at] >> (4 * second) & 15;
            let shift = 4 * second + 2 * (group % 2);
            let high = self.high[pair][group / 2][at] >> shift & 3;
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
            self.low[pair][group][at] |= (value & 15) << (4 * second);
            let shift = 4 * second + 2 * (group % 2);
            self.high[pair][group / 2][at] |= value >> 4 << shift;
        }
    }
}

/// Where a column's value lies: its pair of parts, whether it is in the second one, its group, and
/// its byte for a row.
fn place(column: usize, lane: usize) -> (usize, usize, usize, usize) {
    let (part, k) = (column / PART, column % PART);
    (part / 2, part % 2, k / 4, 4 * lane + k % 4)
}
