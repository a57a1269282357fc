//! Values of blocks of 32 columns, for sixteen rows.
//!
//! Vector `at` has columns `4 at` to `4 at + 3` of each row in the low nibbles, and those 16 columns
//! further in the high ones, as the four bytes from `4 at` on have them in a file.

use super::STEPS;
use crate::simd::{FOURS, Simd};

/// Values of the sixteen rows of a block. All methods that take a `simd` must be always inlined.
pub(crate) trait Values: Copy + Send + Sync + 'static {
    const ZERO: Self;
    /// Largest stored value, or largest magnitude if they are signed.
    const MAX_STORED: i32;

    /// Returns the stored values of two groups of four columns.
    fn fours<S: Simd>(&self, simd: S, at: usize) -> [S::Fours; 2];
    /// Returns the number by which the stored values are above the values.
    fn offset<S: Simd>() -> i32;
    /// Adds the four products of each row to its sum.
    #[inline(always)]
    fn dot<S: Simd>(simd: S, weights: S::Fours, x: [i8; 4], sums: S::Sums) -> S::Sums {
        simd.dot(weights, x, sums)
    }
    /// Returns the value of one row in a column.
    fn value(&self, column: usize, lane: usize) -> i32;
    /// Sets one row from the bytes of a file.
    fn set(&mut self, lane: usize, bytes: &[u8]);
}

/// Four-bit values with an offset.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Halves<const OFFSET: i32>(Nibbles);

/// Five-bit values with an offset.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Fives<const OFFSET: i32> {
    /// Upper bits: bit `n` of a byte belongs to column `4 n`, `4 n + 1`, `4 n + 2` or `4 n + 3`.
    high: [u8; FOURS],
    low: Nibbles,
}

/// Places in [`LEVELS`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Levels(Nibbles);

/// Places in [`DOUBLED`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Floats(Nibbles);

/// Levels of IQ4_NL and IQ4_XS (`kvalues_iq4nl` in ggml's `ggml-common.h`).
pub(crate) const LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Doubled numbers of E2M1: a sign, two bits of exponent, one of mantissa.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Offset that makes the doubled numbers unsigned.
const OFFSET_OF_DOUBLED: i32 = 12;

/// Returns the numbers of a table, raised by `by`, as unsigned bytes. A negative sum keeps its bits.
pub(crate) const fn raised(table: [i8; 16], by: i32) -> [u8; 16] {
    let (mut bytes, mut at) = ([0; 16], 0);
    while at < 16 {
        bytes[at] = (table[at] as i32 + by) as u8;
        at += 1;
    }
    bytes
}

/// Four bits for each of 32 columns.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Nibbles([[u8; FOURS]; STEPS]);

impl Nibbles {
    const ZERO: Self = Self([[0; FOURS]; STEPS]);

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, at: usize) -> [S::Fours; 2] {
        let both = simd.fours(&self.0[at]);
        [simd.low(both), simd.high(both)]
    }

    fn nibble(&self, column: usize, lane: usize) -> usize {
        let (half, k) = (column / 16, column % 16);
        usize::from(self.0[k / 4][4 * lane + k % 4] >> (4 * half) & 15)
    }

    fn set(&mut self, lane: usize, bytes: &[u8]) {
        for (vector, four) in self.0.iter_mut().zip(bytes.as_chunks::<4>().0) {
            vector[4 * lane..4 * lane + 4].copy_from_slice(four);
        }
    }
}

impl<const OFFSET: i32> Values for Halves<OFFSET> {
    const ZERO: Self = Self(Nibbles::ZERO);
    const MAX_STORED: i32 = 15;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, at: usize) -> [S::Fours; 2] {
        self.0.fours(simd, at)
    }

    #[inline(always)]
    fn offset<S: Simd>() -> i32 {
        OFFSET
    }

    fn value(&self, column: usize, lane: usize) -> i32 {
        self.0.nibble(column, lane) as i32 - OFFSET
    }

    fn set(&mut self, lane: usize, bytes: &[u8]) {
        self.0.set(lane, bytes);
    }
}

impl<const OFFSET: i32> Values for Fives<OFFSET> {
    const ZERO: Self = Self { high: [0; FOURS], low: Nibbles::ZERO };
    const MAX_STORED: i32 = 31;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, at: usize) -> [S::Fours; 2] {
        simd.upper::<4>(at, self.low.fours(simd, at), simd.fours(&self.high))
    }

    #[inline(always)]
    fn offset<S: Simd>() -> i32 {
        OFFSET
    }

    fn value(&self, column: usize, lane: usize) -> i32 {
        let bits = self.high[4 * lane + column % 4];
        let fifth = i32::from(bits >> (column / 4) & 1) << 4;
        (self.low.nibble(column, lane) as i32 | fifth) - OFFSET
    }

    /// Bit `n` of the first four bytes belongs to column `n`.
    fn set(&mut self, lane: usize, bytes: &[u8]) {
        let (high, low) = bytes.split_at(4);
        let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
        for k in 0..4 {
            let bit = |group: usize| (high >> (4 * group + k) & 1) as u8;
            self.high[4 * lane + k] = (0..8).fold(0, |byte, group| byte | bit(group) << group);
        }
        self.low.set(lane, low);
    }
}

impl Values for Levels {
    const ZERO: Self = Self(Nibbles::ZERO);
    const MAX_STORED: i32 = 127;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, at: usize) -> [S::Fours; 2] {
        let [first, second] = self.0.fours(simd, at);
        let table = const { &raised(LEVELS, S::RAISED) };
        [simd.looked_up(table, first), simd.looked_up(table, second)]
    }

    #[inline(always)]
    fn offset<S: Simd>() -> i32 {
        S::RAISED
    }

    #[inline(always)]
    fn dot<S: Simd>(simd: S, weights: S::Fours, x: [i8; 4], sums: S::Sums) -> S::Sums {
        simd.signed_dot(weights, x, sums)
    }

    fn value(&self, column: usize, lane: usize) -> i32 {
        LEVELS[self.0.nibble(column, lane)].into()
    }

    fn set(&mut self, lane: usize, bytes: &[u8]) {
        self.0.set(lane, bytes);
    }
}

impl Values for Floats {
    const ZERO: Self = Self(Nibbles::ZERO);
    const MAX_STORED: i32 = 2 * OFFSET_OF_DOUBLED;

    #[inline(always)]
    fn fours<S: Simd>(&self, simd: S, at: usize) -> [S::Fours; 2] {
        let [first, second] = self.0.fours(simd, at);
        let table = const { &raised(DOUBLED, OFFSET_OF_DOUBLED) };
        [simd.looked_up(table, first), simd.looked_up(table, second)]
    }

    #[inline(always)]
    fn offset<S: Simd>() -> i32 {
        OFFSET_OF_DOUBLED
    }

    fn value(&self, column: usize, lane: usize) -> i32 {
        DOUBLED[self.0.nibble(column, lane)].into()
    }

    fn set(&mut self, lane: usize, bytes: &[u8]) {
        self.0.set(lane, bytes);
    }
}
