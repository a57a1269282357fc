//! Weights of each format, with rows of activations in the form that it needs.

use std::ops::Range;

use super::activations::{Quantized, Rows, rows_of};
use super::tile_products::{
    Blocks, Blocks32Products, Columns, PairProducts, Products, SuperblockProducts, Tiles, Weights,
};
use crate::rowwise::BLOCK;
use crate::simd::LANES;
use crate::{blocks32, kquants};

/// Largest number of activation rows per pass: as many as keep their sums in registers. AVX2 has
/// sixteen registers, and a sum takes two. The byte formats also need registers for their products.
const ROWS: usize = 5;
const ROWS_OF_BYTES: usize = 4;

/// Largest number of activation rows per pass of products in bf16: the 32 registers of AVX-512 hold
/// the sums of [`TILES`](super::tile_interleave::TILES) tiles.
pub(super) const MAX_ROWS: usize = 6;

/// Splits rows of activations into passes of at most `most` rows. They have about equal size, since a
/// single row stalls on the latency of its own sums.
#[inline(always)]
pub(super) fn groups(rows: usize, most: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    let count = rows.div_ceil(most);
    (0..count).map(move |at| at * rows / count..(at + 1) * rows / count)
}

/// Weights and activations of a product.
pub(super) trait Kind: Copy {
    /// Largest number of activation rows per pass, up to [`MAX_ROWS`].
    const ROWS: usize;

    /// Returns the products of the interleaved tiles `beside` with `M` rows from `row` on, given
    /// the columns of the matrix and of a stretch. It must be always inlined: see
    /// [`Work`](crate::simd::Work).
    fn products<const M: usize>(
        self,
        columns_and_stretch: (usize, usize),
        beside: &Range<usize>,
        row: usize,
    ) -> impl Products<M>;
}

/// Unquantized weights, in elements of `C` columns.
#[derive(Clone, Copy)]
pub(super) struct Floats<'a, W, const C: usize> {
    pub(super) data: &'a [W],
    pub(super) x: &'a [f32],
    pub(super) stride: usize,
}

impl<W: Weights<C> + Copy, const C: usize> Kind for Floats<'_, W, C> {
    const ROWS: usize = ROWS;

    #[inline(always)]
    fn products<const M: usize>(
        self,
        (columns, stretch): (usize, usize),
        beside: &Range<usize>,
        row: usize,
    ) -> impl Products<M> {
        let (whole, length) = (columns / C * LANES, stretch / C * LANES);
        let weights = Tiles::new(self.data, beside, whole, length);
        Columns::<W, C, M>::new(weights, rows_of(self.x, row, self.stride, columns))
    }
}

/// Weights in pairs of bf16, for products in bf16.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'a> {
    pub(super) data: &'a [u32],
    /// For each of the [`groups`] of rows: for each pair of columns, the pairs of its rows.
    pub(super) x: &'a [u32],
}

impl Kind for Pairs<'_> {
    const ROWS: usize = MAX_ROWS;

    #[inline(always)]
    fn products<const M: usize>(
        self,
        (columns, _): (usize, usize),
        beside: &Range<usize>,
        row: usize,
    ) -> impl Products<M> {
        let (whole, length) = (columns / 2 * LANES, LANES);
        let x = self.x[row * (columns / 2)..][..M * (columns / 2)].as_chunks().0;
        PairProducts::<M> { weights: Tiles::new(self.data, beside, whole, length), x }
    }
}

/// Weights in Q8_0.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a> {
    pub(super) scales: &'a [u16],
    pub(super) values: &'a [i8],
    pub(super) x: Quantized<'a, i32>,
}

impl Kind for Bytes<'_> {
    const ROWS: usize = ROWS_OF_BYTES;

    #[inline(always)]
    fn products<const M: usize>(
        self,
        (columns, stretch): (usize, usize),
        beside: &Range<usize>,
        row: usize,
    ) -> impl Products<M> {
        let (whole, length) = (columns / BLOCK * LANES, stretch / BLOCK * LANES);
        Blocks {
            values: Tiles::new(self.values, beside, columns * LANES, stretch * LANES),
            scales: Tiles::new(self.scales, beside, whole, length),
            x: Rows::<M>::new(self.x, row),
        }
    }
}

/// Weights in blocks of 32.
#[derive(Clone, Copy)]
pub(super) struct Blocks32<'a, B> {
    pub(super) data: &'a [B],
    pub(super) x: Quantized<'a, i32>,
}

impl<B: blocks32::Block> Kind for Blocks32<'_, B> {
    const ROWS: usize = ROWS_OF_BYTES;

    #[inline(always)]
    fn products<const M: usize>(
        self,
        (columns, stretch): (usize, usize),
        beside: &Range<usize>,
        row: usize,
    ) -> impl Products<M> {
        let blocks = Tiles::new(self.data, beside, columns / BLOCK, stretch / BLOCK);
        Blocks32Products { blocks, x: Rows::<M>::new(self.x, row) }
    }
}

/// Weights in blocks of 256.
#[derive(Clone, Copy)]
pub(super) struct Superblocks<'a, B> {
    pub(super) data: &'a [B],
    pub(super) x: Quantized<'a, i16>,
}

impl<B: kquants::Block> Kind for Superblocks<'_, B> {
    const ROWS: usize = ROWS_OF_BYTES;

    #[inline(always)]
    fn products<const M: usize>(
        self,
        (columns, stretch): (usize, usize),
        beside: &Range<usize>,
        row: usize,
    ) -> impl Products<M> {
        let (whole, length) = (columns / kquants::BLOCK, stretch / kquants::BLOCK);
        SuperblockProducts::<B, M>::new(Tiles::new(self.data, beside, whole, length), self.x, row)
    }
}
