//! Rows of activations in blocks, as the products of tiles read them.

use std::ops::Range;

use crate::kquants;
use crate::q8::{self, TILE_BLOCK};
use crate::rowwise::BLOCK;
use crate::simd::{LANES, Simd, Work};

/// Pairs of columns in a block of products in bf16.
pub(super) const PAIRS: usize = 16;

/// Rows in blocks, as [`InBlocks`](crate::rowwise::InBlocks) makes them.
#[derive(Clone, Copy)]
pub(crate) struct Quantized<'a, T> {
    pub(crate) columns: usize,
    /// `[rows, columns]`.
    pub(crate) values: &'a [i8],
    /// One scale for each block.
    pub(crate) scales: &'a [f32],
    /// Sum of each 32 values, or of each 16 where the matrix is in Q2_K, Q3_K or Q6_K.
    pub(crate) sums: &'a [T],
}

/// Rounding of rows to pairs of bf16. For each pair of columns, `out` has the pairs of all rows.
pub(super) struct InPairs<'a> {
    pub(super) x: &'a [f32],
    /// Distance from one row to the next.
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) out: &'a mut [u32],
}

impl Work for InPairs<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        if self.rows == 1 {
            round_all(self.out, self.x.as_chunks().0);
            return;
        }
        let width = self.out.len() / self.rows;
        // Short runs of each row are rounded side by side, then written between those of the others.
        for first in (0..width).step_by(LANES) {
            let count = LANES.min(width - first);
            for row in 0..self.rows {
                let x = &self.x[row * self.stride + 2 * first..][..2 * count];
                let mut run = [0; LANES];
                round_all(&mut run, x.as_chunks().0);
                for (at, pair) in run[..count].iter().enumerate() {
                    self.out[(first + at) * self.rows + row] = *pair;
                }
            }
        }
    }
}

/// Rounding of a run of rows to pairs of bf16, in blocks of up to [`PAIRS`] pairs that begin anew with
/// each segment. A block has its pairs row by row.
pub(super) struct InPairBlocks<'a> {
    pub(super) x: &'a [f32],
    /// Distance from one row to the next.
    pub(super) stride: usize,
    pub(super) rows: usize,
    /// Number of pairs in a segment.
    pub(super) segment: usize,
    pub(super) out: &'a mut [u32],
}

impl Work for InPairBlocks<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let mut first = 0;
        for segment in self.out.chunks_exact_mut(self.segment * self.rows) {
            for block in segment.chunks_mut(PAIRS * self.rows) {
                let width = block.len() / self.rows;
                for (row, out) in block.chunks_exact_mut(width).enumerate() {
                    let x = self.x[row * self.stride + 2 * first..][..2 * width].as_chunks().0;
                    if width == PAIRS {
                        // With the length known here, the loop is vectorized.
                        round_all(&mut out[..PAIRS], &x[..PAIRS]);
                    } else {
                        round_all(out, x);
                    }
                }
                first += width;
            }
        }
    }
}

/// Rounds pairs of numbers, as many as both slices have.
#[inline(always)]
fn round_all(out: &mut [u32], x: &[[f32; 2]]) {
    for (pair, x) in out.iter_mut().zip(x) {
        *pair = rounded(x);
    }
}

/// Rounds two numbers to the nearest bf16, ties to even: the first is the lower half. NaN stays NaN.
#[inline(always)]
fn rounded([first, second]: &[f32; 2]) -> u32 {
    #[inline(always)]
    fn in_upper_half(x: f32) -> u32 {
        let bits = x.to_bits();
        let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        if x.is_nan() { bits | 0x0040_0000 } else { nearest }
    }
    in_upper_half(*first) >> 16 | in_upper_half(*second) & 0xffff_0000
}

/// `M` activation rows in blocks of 32.
pub(super) struct Rows<'a, const M: usize> {
    values: [&'a [[i8; BLOCK]]; M],
    scales: [&'a [f32]; M],
    sums: [&'a [i32]; M],
}

/// One block of 32 of each row: values, their sums, scales.
pub(super) type Blocks<'a, const M: usize> = ([&'a [i8; BLOCK]; M], [i32; M], [f32; M]);

/// `M` activation rows in blocks of 256.
pub(super) struct WideRows<'a, const M: usize> {
    values: [&'a [[i8; kquants::BLOCK]]; M],
    scales: [&'a [f32]; M],
    sums: [&'a [i16]; M],
    /// Number of sums for each block.
    summed: usize,
}

/// One block of 256 of each row: values, their sums, scales.
pub(super) type WideBlocks<'a, const M: usize> =
    ([&'a [i8; kquants::BLOCK]; M], [&'a [i16]; M], [f32; M]);

impl<'a, const M: usize> WideRows<'a, M> {
    #[inline(always)]
    pub(super) fn new(x: Quantized<'a, i16>, row: usize, summed: usize) -> Self {
        let count = x.columns / kquants::BLOCK;
        Self {
            values: rows_of(x.values.as_chunks().0, row, count, count),
            scales: rows_of(x.scales, row, count, count),
            sums: rows_of(x.sums, row, count * summed, count * summed),
            summed,
        }
    }

    #[inline(always)]
    pub(super) fn block(&self, at: usize) -> WideBlocks<'a, M> {
        let (mut values, mut sums) = ([&[0; kquants::BLOCK]; M], [&[][..]; M]);
        let mut scales = [0.0; M];
        for m in 0..M {
            (values[m], scales[m]) = (&self.values[m][at], self.scales[m][at]);
            sums[m] = &self.sums[m][at * self.summed..][..self.summed];
        }
        (values, sums, scales)
    }
}

impl<'a, const M: usize> Rows<'a, M> {
    #[inline(always)]
    pub(super) fn new(x: Quantized<'a, i32>, row: usize) -> Self {
        let blocks = x.columns / BLOCK;
        Self {
            values: rows_of(x.values.as_chunks().0, row, blocks, blocks),
            scales: rows_of(x.scales, row, blocks, blocks),
            sums: rows_of(x.sums, row, blocks, blocks),
        }
    }

    #[inline(always)]
    pub(super) fn block(&self, at: usize) -> Blocks<'a, M> {
        let (mut values, mut sums, mut scales) = ([&[0; BLOCK]; M], [0; M], [0.0; M]);
        for m in 0..M {
            values[m] = &self.values[m][at];
            (sums[m], scales[m]) = (self.sums[m][at], self.scales[m][at]);
        }
        (values, sums, scales)
    }

    #[inline(always)]
    pub(super) fn bytes(
        &self,
        simd: impl Simd,
        weights: &[i8; TILE_BLOCK],
        block: usize,
    ) -> [[i32; LANES]; M] {
        let (values, sums, _) = self.block(block);
        q8::dots(simd, weights, values, sums)
    }

    /// Adds a block's integer products, times the scales of the weights and of the activations.
    #[inline(always)]
    pub(super) fn scale<I: Simd>(
        &self,
        simd: I,
        products: &[[i32; LANES]; M],
        of_weights: I::Vector,
        block: usize,
        sums: &mut [I::Vector; M],
    ) {
        for m in 0..M {
            let both = simd.multiply(of_weights, simd.splat(self.scales[m][block]));
            sums[m] = simd.fused(simd.integers(&products[m]), both, sums[m]);
        }
    }
}

/// Returns `M` rows of `length`, `stride` apart. It uses a loop like everything here, since a
/// closure might not be compiled for the tier.
#[inline(always)]
pub(super) fn rows_of<T, const M: usize>(
    x: &[T],
    row: usize,
    stride: usize,
    length: usize,
) -> [&[T]; M] {
    let mut rows: [&[T]; M] = [&[]; M];
    for m in 0..M {
        rows[m] = &x[(row + m) * stride..][..length];
    }
    rows
}

/// Returns a range of elements of each of `M` rows.
#[inline(always)]
pub(super) fn parts_of<'a, T, const M: usize>(
    rows: &[&'a [T]; M],
    range: &Range<usize>,
) -> [&'a [T]; M] {
    let mut parts: [&[T]; M] = [&[]; M];
    for m in 0..M {
        parts[m] = &rows[m][range.start..range.end];
    }
    parts
}

/// Returns one stretch of `len` elements of each of `M` rows. The known length removes bounds
/// checks from the inner loops.
#[inline(always)]
pub(super) fn parts<'a, T, const M: usize>(
    rows: &[&'a [T]; M],
    stretch: usize,
    len: usize,
) -> [&'a [T]; M] {
    let mut parts: [&[T]; M] = [&[]; M];
    for m in 0..M {
        parts[m] = &rows[m][stretch * len..][..len];
    }
    parts
}

/// Returns the first `len` numbers of a buffer, which grows if needed.
pub(super) fn room<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}
