//! Rows of activations in blocks, as the products of tiles read them.

use crate::kquants;
use crate::q8::{self, TILE_BLOCK};
use crate::rowwise::BLOCK;
use crate::simd::{LANES, Simd};

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
