//! Products of one stretch of a tile, by format.

use std::ops::Range;
use std::slice::ChunksExact;

use super::activations::{Quantized, Rows, WideRows, parts, parts_of};
use super::tile_interleave::TILES;
use crate::prefetch::{distance, prefetch_ahead};
use crate::simd::{LANES, Simd, Tier};
use crate::{blocks32, kquants};

/// Products of interleaved tiles with `M` rows.
pub(super) trait Products<const M: usize> {
    /// Adds the products of one stretch of a tile to `sums`. It must be always inlined: see
    /// [`Work`].
    fn add<I: Simd>(&self, simd: I, stretch: usize, turn: usize, sums: &mut [I::Vector; M]);

    /// Adds the products of some stretches of some tiles, one `turn` after the other.
    #[inline(always)]
    fn add_all<I: Simd>(
        &self,
        simd: I,
        stretches: Range<usize>,
        turns: Range<usize>,
        sums: &mut [[I::Vector; M]; TILES],
    ) {
        one_after_the_other(self, simd, stretches, turns, sums);
    }
}

#[inline(always)]
fn one_after_the_other<I: Simd, const M: usize>(
    products: &(impl Products<M> + ?Sized),
    simd: I,
    stretches: Range<usize>,
    turns: Range<usize>,
    sums: &mut [[I::Vector; M]; TILES],
) {
    for stretch in stretches {
        for (turn, sums) in turns.clone().zip(&mut *sums) {
            products.add(simd, stretch, turn, sums);
        }
    }
}

/// Weights of a group of interleaved tiles.
#[derive(Clone, Copy)]
pub(super) struct Tiles<'a, T> {
    weights: &'a [T],
    /// Number of tiles in the group, and elements in a stretch of one tile.
    beside: usize,
    length: usize,
}

impl<'a, T> Tiles<'a, T> {
    /// Selects the tiles `beside` from a matrix's weights, with `whole` elements per tile and
    /// `length` per stretch.
    #[inline(always)]
    pub(super) fn new(
        weights: &'a [T],
        beside: &Range<usize>,
        whole: usize,
        length: usize,
    ) -> Self {
        let weights = &weights[beside.start * whole..beside.end * whole];
        Self { weights, beside: beside.len(), length }
    }

    /// Returns the elements of all tiles of the group, stretch by stretch, where a stretch is an element
    /// of sixteen rows.
    #[inline(always)]
    fn groups(&self, stretches: Range<usize>) -> ChunksExact<'a, [T; LANES]> {
        let weights = self.weights.as_chunks::<LANES>().0;
        weights[stretches.start * self.beside..stretches.end * self.beside]
            .chunks_exact(self.beside)
    }

    #[inline(always)]
    fn stretch(&self, stretch: usize, turn: usize) -> &'a [T] {
        &self.weights[(stretch * self.beside + turn) * self.length..][..self.length]
    }
}

/// Storage element of a tile: the weights of a row in `C` columns. Sixteen of them, one for each
/// row, unpack to `C` vectors.
pub(super) trait Weights<const C: usize>: Sized {
    /// Unpacks sixteen rows' elements. It must be always inlined: see [`Work`].
    fn vectors<I: Simd>(simd: I, weights: &[Self; LANES]) -> [I::Vector; C];
}

impl Weights<1> for f32 {
    #[inline(always)]
    fn vectors<I: Simd>(simd: I, weights: &[Self; LANES]) -> [I::Vector; 1] {
        [simd.load(weights)]
    }
}

/// One f16 weight.
impl Weights<1> for u16 {
    #[inline(always)]
    fn vectors<I: Simd>(simd: I, weights: &[Self; LANES]) -> [I::Vector; 1] {
        [simd.halves(weights)]
    }
}

/// Two bf16 weights.
impl Weights<2> for u32 {
    #[inline(always)]
    fn vectors<I: Simd>(simd: I, weights: &[Self; LANES]) -> [I::Vector; 2] {
        simd.pairs(weights)
    }
}

/// Tiles of unquantized weights (f32, bf16, f16).
pub(super) struct Columns<'a, W, const C: usize, const M: usize> {
    weights: Tiles<'a, W>,
    x: [&'a [[f32; C]]; M],
}

impl<'a, W, const C: usize, const M: usize> Columns<'a, W, C, M> {
    #[inline(always)]
    pub(super) fn new(weights: Tiles<'a, W>, x: [&'a [f32]; M]) -> Self {
        let mut chunks: [&[[f32; C]]; M] = [&[]; M];
        for m in 0..M {
            chunks[m] = x[m].as_chunks().0;
        }
        Self { weights, x: chunks }
    }
}

impl<W: Weights<C>, const C: usize, const M: usize> Columns<'_, W, C, M> {
    /// Adds the products of `T` tiles from `turn` on, whose stretches are as short as an element.
    #[inline(always)]
    fn of_tiles<I: Simd, const T: usize>(
        &self,
        simd: I,
        stretches: Range<usize>,
        turn: usize,
        sums: &mut [[I::Vector; M]; TILES],
    ) {
        let x = parts_of(&self.x, &stretches);
        // A local copy keeps the sums in registers.
        let mut own = [[simd.splat(0.0); M]; T];
        own.copy_from_slice(&sums[..T]);
        let distance = distance();
        for (k, weights) in self.weights.groups(stretches).enumerate() {
            let weights = &weights[turn..turn + T];
            let mut vectors = [[simd.splat(0.0); C]; T];
            for t in 0..T {
                prefetch_ahead(&raw const weights[t], distance);
                vectors[t] = W::vectors(simd, &weights[t]);
            }
            for c in 0..C {
                for m in 0..M {
                    let x = simd.splat(x[m][k][c]);
                    for t in 0..T {
                        own[t][m] = simd.fused(vectors[t][c], x, own[t][m]);
                    }
                }
            }
        }
        sums[..T].copy_from_slice(&own);
    }
}

impl<W: Weights<C>, const C: usize, const M: usize> Products<M> for Columns<'_, W, C, M> {
    #[inline(always)]
    fn add_all<I: Simd>(
        &self,
        simd: I,
        stretches: Range<usize>,
        turns: Range<usize>,
        sums: &mut [[I::Vector; M]; TILES],
    ) {
        if I::TIER < Tier::Avx512 || self.weights.length != LANES {
            return one_after_the_other(self, simd, stretches, turns, sums);
        }
        match turns.len() {
            1 => self.of_tiles::<I, 1>(simd, stretches, turns.start, sums),
            2 => self.of_tiles::<I, 2>(simd, stretches, turns.start, sums),
            3 => self.of_tiles::<I, 3>(simd, stretches, turns.start, sums),
            _ => self.of_tiles::<I, TILES>(simd, stretches, turns.start, sums),
        }
    }

    #[inline(always)]
    fn add<I: Simd>(&self, simd: I, stretch: usize, turn: usize, sums: &mut [I::Vector; M]) {
        let weights = self.weights.stretch(stretch, turn).as_chunks::<LANES>().0;
        let x = parts(&self.x, stretch, weights.len());
        // A local copy keeps the sums in registers.
        let mut own = *sums;
        let distance = distance();
        for (k, weights) in weights.iter().enumerate() {
            prefetch_ahead(weights, distance);
            let weights = W::vectors(simd, weights);
            for c in 0..C {
                for m in 0..M {
                    own[m] = simd.fused(weights[c], simd.splat(x[m][k][c]), own[m]);
                }
            }
        }
        *sums = own;
    }
}

/// Tiles of bf16 pairs, for products in bf16. A stretch is a pair of columns.
pub(super) struct PairProducts<'a, const M: usize> {
    pub(super) weights: Tiles<'a, u32>,
    /// For each pair of columns, the pairs of the rows.
    pub(super) x: &'a [[u32; M]],
}

impl<const M: usize> PairProducts<'_, M> {
    /// Adds the products of `T` tiles from `turn` on. A pair of activations is loaded once for all of
    /// them, and the weights are read in the order of the memory.
    #[inline(always)]
    fn of_tiles<I: Simd, const T: usize>(
        &self,
        simd: I,
        stretches: Range<usize>,
        turn: usize,
        sums: &mut [[I::Vector; M]; TILES],
    ) {
        let weights = self.weights.groups(stretches.clone());
        // A local copy keeps the sums in registers.
        let mut own = [[simd.splat(0.0); M]; T];
        own.copy_from_slice(&sums[..T]);
        let distance = distance();
        for (weights, x) in weights.zip(&self.x[stretches]) {
            let weights = &weights[turn..turn + T];
            for weights in weights {
                prefetch_ahead(weights, distance);
            }
            for m in 0..M {
                for t in 0..T {
                    own[t][m] = simd.pair_products(&weights[t], x[m], own[t][m]);
                }
            }
        }
        sums[..T].copy_from_slice(&own);
    }
}

impl<const M: usize> Products<M> for PairProducts<'_, M> {
    #[inline(always)]
    fn add<I: Simd>(&self, simd: I, stretch: usize, turn: usize, sums: &mut [I::Vector; M]) {
        let mut all = [*sums; TILES];
        self.of_tiles::<I, 1>(simd, stretch..stretch + 1, turn, &mut all);
        *sums = all[0];
    }

    #[inline(always)]
    fn add_all<I: Simd>(
        &self,
        simd: I,
        stretches: Range<usize>,
        turns: Range<usize>,
        sums: &mut [[I::Vector; M]; TILES],
    ) {
        match turns.len() {
            1 => self.of_tiles::<I, 1>(simd, stretches, turns.start, sums),
            2 => self.of_tiles::<I, 2>(simd, stretches, turns.start, sums),
            3 => self.of_tiles::<I, 3>(simd, stretches, turns.start, sums),
            _ => self.of_tiles::<I, TILES>(simd, stretches, turns.start, sums),
        }
    }
}

/// Tiles in blocks of 32 (Q8_0).
pub(super) struct Blocks<'a, const M: usize> {
    pub(super) values: Tiles<'a, i8>,
    pub(super) scales: Tiles<'a, u16>,
    pub(super) x: Rows<'a, M>,
}

impl<const M: usize> Products<M> for Blocks<'_, M> {
    #[inline(always)]
    fn add<I: Simd>(&self, simd: I, stretch: usize, turn: usize, sums: &mut [I::Vector; M]) {
        let values = self.values.stretch(stretch, turn).as_chunks().0;
        let scales = self.scales.stretch(stretch, turn).as_chunks().0;
        let mut own = *sums;
        for (values, (at, scales)) in values.iter().zip((stretch * scales.len()..).zip(scales)) {
            let products = self.x.bytes(simd, values, at);
            self.x.scale(simd, &products, simd.halves(scales), at, &mut own);
        }
        *sums = own;
    }
}

/// Tiles in blocks of 32 (all other formats that have them).
pub(super) struct Blocks32Products<'a, B, const M: usize> {
    pub(super) blocks: Tiles<'a, B>,
    pub(super) x: Rows<'a, M>,
}

impl<B: blocks32::Block, const M: usize> Products<M> for Blocks32Products<'_, B, M> {
    #[inline(always)]
    fn add<I: Simd>(&self, simd: I, stretch: usize, turn: usize, sums: &mut [I::Vector; M]) {
        let first = stretch * self.blocks.length;
        // A local copy keeps the sums in registers.
        let mut own = *sums;
        for (at, block) in self.blocks.stretch(stretch, turn).iter().enumerate() {
            let (values, of_x, scales) = self.x.block(first + at);
            blocks32::add(simd, block, values, of_x, scales, &mut own);
        }
        *sums = own;
    }
}

/// Tiles in blocks of 256 (K-quants, IQ4_XS).
pub(super) struct SuperblockProducts<'a, B, const M: usize> {
    blocks: Tiles<'a, B>,
    x: WideRows<'a, M>,
}

impl<'a, B: kquants::Block, const M: usize> SuperblockProducts<'a, B, M> {
    #[inline(always)]
    pub(super) fn new(blocks: Tiles<'a, B>, x: Quantized<'a, i16>, row: usize) -> Self {
        Self { blocks, x: WideRows::new(x, row, const { kquants::BLOCK / B::SUMMED }) }
    }
}

impl<B: kquants::Block, const M: usize> Products<M> for SuperblockProducts<'_, B, M> {
    #[inline(always)]
    fn add<I: Simd>(&self, simd: I, stretch: usize, turn: usize, sums: &mut [I::Vector; M]) {
        let first = stretch * self.blocks.length;
        for (at, block) in self.blocks.stretch(stretch, turn).iter().enumerate() {
            let (values, of_x, scales) = self.x.block(first + at);
            kquants::add(simd, block, values, of_x, scales, sums);
        }
    }
}
