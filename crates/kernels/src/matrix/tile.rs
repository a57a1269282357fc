//! GEMM micro-kernels: products of a matrix's tiles with rows of activations.
//!
//! All formats share one loop nest: tiles, rows, segment, stretch, tile, column. A stretch is a run
//! of consecutive columns of one tile, contiguous in memory. The register blocking (rows and tiles
//! per pass) affects only what is loaded again: each sum takes its terms in the order of the
//! columns.

use std::ops::Range;

use super::tile_interleave::TILES;
use super::{Data, Matrix, SEGMENTS};
use crate::kquants;
use crate::prefetch::{distance, prefetch_ahead};
use crate::q8::{self, TILE_BLOCK};
use crate::row::BLOCK;
use crate::simd::{LANES, Lanes, Simd, Work};

/// Largest number of activation rows per pass: as many as keep their sums in registers. AVX2 has
/// sixteen registers, and a sum takes two. The byte formats also need registers for their products.
const ROWS: usize = 5;
const ROWS_OF_BYTES: usize = 4;

/// Rows of activations in the form that the matrix's format needs.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    /// Rows of f32, `stride` numbers apart.
    Float { x: &'a [f32], stride: usize },
    /// `[rows, columns]` in blocks of 32.
    Quantized(Quantized<'a, i32>),
    /// `[rows, columns]` in blocks of 256.
    Wide(Quantized<'a, i16>),
}

/// Rows in blocks, as [`InBlocks`](crate::row::InBlocks) makes them.
#[derive(Clone, Copy)]
pub(crate) struct Quantized<'a, T> {
    pub(crate) columns: usize,
    /// `[rows, columns]`.
    pub(crate) values: &'a [i8],
    /// One scale for each block.
    pub(crate) scales: &'a [f32],
    /// Sum of each 32 values, or of each 16 where the matrix is in Q6_K.
    pub(crate) sums: &'a [T],
}

/// Epilogue of a product, called with 16 outputs of one row of activations.
pub(crate) trait Store {
    /// Stores one tile's outputs for a row. It must be always inlined: see [`Work`].
    fn store(&mut self, row: usize, tile: usize, lanes: &Lanes);
}

/// Multiplies a range of tiles with all rows of activations.
pub(crate) struct Multiply<'a, S> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) tiles: Range<usize>,
    pub(crate) input: Input<'a>,
    pub(crate) rows: usize,
    pub(crate) store: S,
}

impl<S: Store> Work for Multiply<'_, S> {
    #[inline(always)]
    fn run<I: Simd>(mut self, simd: I) {
        let most = match self.matrix.data {
            Data::F32(_) | Data::Bf16(_) | Data::F16(_) => ROWS,
            _ => ROWS_OF_BYTES,
        };
        // The rows are split into groups of about equal size, since a single row stalls on the
        // latency of its own sums.
        let groups = self.rows.div_ceil(most);
        let mut waiting = [const { Waiting::new() }; TILES];
        let mut tile = self.tiles.start;
        while tile < self.tiles.end {
            let beside = self.matrix.interleave.beside(tile);
            let end = self.tiles.end.min(beside.end);
            let mut row = 0;
            for group in 0..groups {
                let next = (group + 1) * self.rows / groups;
                let (tiles, beside) = (tile..end, beside.clone());
                match next - row {
                    1 => self.group::<1>(simd, tiles, beside, row, &mut waiting),
                    2 => self.group::<2>(simd, tiles, beside, row, &mut waiting),
                    3 => self.group::<3>(simd, tiles, beside, row, &mut waiting),
                    4 => self.group::<4>(simd, tiles, beside, row, &mut waiting),
                    _ => self.group::<5>(simd, tiles, beside, row, &mut waiting),
                }
                row = next;
            }
            tile = end;
        }
    }
}

impl<S: Store> Multiply<'_, S> {
    /// Multiplies `M` rows with some of a group of interleaved tiles.
    #[inline(always)]
    fn group<const M: usize>(
        &mut self,
        simd: impl Simd,
        tiles: Range<usize>,
        beside: Range<usize>,
        row: usize,
        waiting: &mut [Waiting; TILES],
    ) {
        let place = (tiles, beside.clone(), row);
        let of_256 = |columns: usize| columns / kquants::BLOCK;
        let matrix = self.matrix;
        let (columns, stretch) = (matrix.columns, matrix.interleave.stretch);
        match (&matrix.data, self.input) {
            (Data::F32(data), Input::Float { x, stride }) => {
                let weights = Tiles::new(data, &beside, columns * LANES, stretch * LANES);
                let x = rows_of(x, row, stride, columns);
                self.sum(simd, place, &Columns::<_, 1, M>::new(weights, x), waiting);
            }
            (Data::Bf16(data), Input::Float { x, stride }) => {
                let weights = Tiles::new(data, &beside, columns / 2 * LANES, stretch / 2 * LANES);
                let x = rows_of(x, row, stride, columns);
                self.sum(simd, place, &Columns::<_, 2, M>::new(weights, x), waiting);
            }
            (Data::F16(data), Input::Float { x, stride }) => {
                let weights = Tiles::new(data, &beside, columns * LANES, stretch * LANES);
                let x = rows_of(x, row, stride, columns);
                self.sum(simd, place, &Columns::<_, 1, M>::new(weights, x), waiting);
            }
            (Data::Q8 { scales, values }, Input::Quantized(x)) if M <= ROWS_OF_BYTES => {
                let scales_of = |columns: usize| columns / BLOCK * LANES;
                let blocks = Blocks {
                    values: Tiles::new(values, &beside, columns * LANES, stretch * LANES),
                    scales: Tiles::new(scales, &beside, scales_of(columns), scales_of(stretch)),
                    x: Rows::<M>::new(x, row),
                };
                self.sum::<_, M>(simd, place, &blocks, waiting);
            }
            (Data::Q4K(data), Input::Wide(x)) if M <= ROWS_OF_BYTES => {
                let blocks = Tiles::new(data, &beside, of_256(columns), of_256(stretch));
                self.sum::<_, M>(simd, place, &Wide::new(blocks, x, row), waiting);
            }
            (Data::Q5K(data), Input::Wide(x)) if M <= ROWS_OF_BYTES => {
                let blocks = Tiles::new(data, &beside, of_256(columns), of_256(stretch));
                self.sum::<_, M>(simd, place, &Wide::new(blocks, x, row), waiting);
            }
            (Data::Q6K(data), Input::Wide(x)) if M <= ROWS_OF_BYTES => {
                let blocks = Tiles::new(data, &beside, of_256(columns), of_256(stretch));
                self.sum::<_, M>(simd, place, &Wide::new(blocks, x, row), waiting);
            }
            _ => unreachable!("the input is of the matrix's format"),
        }
    }

    /// Computes all segments of the products of `M` rows.
    #[inline(always)]
    fn sum<I: Simd, const M: usize>(
        &mut self,
        simd: I,
        (tiles, beside, row): (Range<usize>, Range<usize>, usize),
        products: &impl Products<M>,
        waiting: &mut [Waiting; TILES],
    ) {
        let segments = self.matrix.segments;
        let stretches = self.matrix.interleave.count / segments;
        let turns = tiles.start - beside.start..tiles.end - beside.start;
        let mut sums = [[simd.splat(0.0); M]; TILES];
        for segment in 0..segments {
            sums = [[simd.splat(0.0); M]; TILES];
            for stretch in segment * stretches..(segment + 1) * stretches {
                for (turn, sums) in turns.clone().zip(&mut sums) {
                    products.add(simd, stretch, turn, sums);
                }
            }
            for (waiting, sums) in waiting.iter_mut().zip(&mut sums).take(turns.len()) {
                waiting.end(simd, segment, segments, sums);
            }
        }
        for (tile, sums) in tiles.zip(sums) {
            for (m, sum) in sums.into_iter().enumerate() {
                let mut lanes = [0.0; LANES];
                simd.store(sum, &mut lanes);
                self.store(row + m, tile, lanes);
            }
        }
    }

    #[inline(always)]
    fn store(&mut self, row: usize, tile: usize, mut sums: Lanes) {
        if let Some(bias) = self.matrix.bias(tile) {
            for lane in 0..LANES {
                sums[lane] += bias[lane];
            }
        }
        self.store.store(row, tile, &sums);
    }
}

/// Partial sums of each row that wait for their neighbor in the tree that adds up the segments.
struct Waiting([[Lanes; ROWS]; SEGMENTS.ilog2() as usize]);

impl Waiting {
    #[inline(always)]
    const fn new() -> Self {
        Self([[[0.0; LANES]; ROWS]; SEGMENTS.ilog2() as usize])
    }

    /// Ends a segment. The tree adds neighbors, then neighboring pairs: each second segment
    /// completes a pair, each fourth a pair of pairs, and the last one the whole sum.
    #[inline(always)]
    fn end<I: Simd, const M: usize>(
        &mut self,
        simd: I,
        segment: usize,
        segments: usize,
        sums: &mut [I::Vector; M],
    ) {
        let mut level = 0;
        while segment >> level & 1 == 1 {
            for (sum, left) in sums.iter_mut().zip(&self.0[level]) {
                *sum = simd.add(simd.load(left), *sum);
            }
            level += 1;
        }
        if segment + 1 < segments {
            for (sum, waiting) in sums.iter().zip(&mut self.0[level]) {
                simd.store(*sum, waiting);
            }
        }
    }
}

/// Products of interleaved tiles with `M` rows.
trait Products<const M: usize> {
    /// Adds the products of one stretch of a tile to `sums`. It must be always inlined: see
    /// [`Work`].
    fn add<I: Simd>(&self, simd: I, stretch: usize, turn: usize, sums: &mut [I::Vector; M]);
}

/// Weights of a group of interleaved tiles.
#[derive(Clone, Copy)]
struct Tiles<'a, T> {
    weights: &'a [T],
    /// Number of tiles in the group, and elements in a stretch of one tile.
    beside: usize,
    length: usize,
}

impl<'a, T> Tiles<'a, T> {
    /// Selects the tiles `beside` from a matrix's weights, with `whole` elements per tile and
    /// `length` per stretch.
    #[inline(always)]
    fn new(weights: &'a [T], beside: &Range<usize>, whole: usize, length: usize) -> Self {
        let weights = &weights[beside.start * whole..beside.end * whole];
        Self { weights, beside: beside.len(), length }
    }

    #[inline(always)]
    fn stretch(&self, stretch: usize, turn: usize) -> &'a [T] {
        &self.weights[(stretch * self.beside + turn) * self.length..][..self.length]
    }
}

/// Storage element of a tile: the weights of a row in `C` columns. Sixteen of them, one for each
/// row, unpack to `C` vectors.
trait Weights<const C: usize>: Sized {
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
struct Columns<'a, W, const C: usize, const M: usize> {
    weights: Tiles<'a, W>,
    x: [&'a [[f32; C]]; M],
}

impl<'a, W, const C: usize, const M: usize> Columns<'a, W, C, M> {
    #[inline(always)]
    fn new(weights: Tiles<'a, W>, x: [&'a [f32]; M]) -> Self {
        let mut chunks: [&[[f32; C]]; M] = [&[]; M];
        for m in 0..M {
            chunks[m] = x[m].as_chunks().0;
        }
        Self { weights, x: chunks }
    }
}

impl<W: Weights<C>, const C: usize, const M: usize> Products<M> for Columns<'_, W, C, M> {
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

/// Tiles in blocks of 32 (Q8_0).
struct Blocks<'a, const M: usize> {
    values: Tiles<'a, i8>,
    scales: Tiles<'a, u16>,
    x: Rows<'a, M>,
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

/// Tiles in blocks of 256 (K-quants).
struct Wide<'a, B, const M: usize> {
    blocks: Tiles<'a, B>,
    x: WideRows<'a, M>,
}

impl<'a, B: kquants::Block, const M: usize> Wide<'a, B, M> {
    #[inline(always)]
    fn new(blocks: Tiles<'a, B>, x: Quantized<'a, i16>, row: usize) -> Self {
        Self { blocks, x: WideRows::new(x, row, const { kquants::BLOCK / B::SUMMED }) }
    }
}

impl<B: kquants::Block, const M: usize> Products<M> for Wide<'_, B, M> {
    #[inline(always)]
    fn add<I: Simd>(&self, simd: I, stretch: usize, turn: usize, sums: &mut [I::Vector; M]) {
        let first = stretch * self.blocks.length;
        for (at, block) in self.blocks.stretch(stretch, turn).iter().enumerate() {
            let (values, of_x, scales) = self.x.block(first + at);
            kquants::add(simd, block, values, of_x, scales, sums);
        }
    }
}

/// `M` activation rows in blocks of 32.
struct Rows<'a, const M: usize> {
    values: [&'a [[i8; BLOCK]]; M],
    scales: [&'a [f32]; M],
    sums: [&'a [i32]; M],
}

/// `M` activation rows in blocks of 256.
struct WideRows<'a, const M: usize> {
    values: [&'a [[i8; kquants::BLOCK]]; M],
    scales: [&'a [f32]; M],
    sums: [&'a [i16]; M],
    /// Number of sums for each block.
    summed: usize,
}

/// One block of each row: values, their sums, scales.
type WideBlocks<'a, const M: usize> = ([&'a [i8; kquants::BLOCK]; M], [&'a [i16]; M], [f32; M]);

impl<'a, const M: usize> WideRows<'a, M> {
    #[inline(always)]
    fn new(x: Quantized<'a, i16>, row: usize, summed: usize) -> Self {
        let count = x.columns / kquants::BLOCK;
        Self {
            values: rows_of(x.values.as_chunks().0, row, count, count),
            scales: rows_of(x.scales, row, count, count),
            sums: rows_of(x.sums, row, count * summed, count * summed),
            summed,
        }
    }

    #[inline(always)]
    fn block(&self, at: usize) -> WideBlocks<'a, M> {
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
    fn new(x: Quantized<'a, i32>, row: usize) -> Self {
        let blocks = x.columns / BLOCK;
        Self {
            values: rows_of(x.values.as_chunks().0, row, blocks, blocks),
            scales: rows_of(x.scales, row, blocks, blocks),
            sums: rows_of(x.sums, row, blocks, blocks),
        }
    }

    #[inline(always)]
    fn bytes(
        &self,
        simd: impl Simd,
        weights: &[i8; TILE_BLOCK],
        block: usize,
    ) -> [[i32; LANES]; M] {
        let (mut values, mut sums) = ([&[0; BLOCK]; M], [0; M]);
        for m in 0..M {
            values[m] = &self.values[m][block];
            sums[m] = self.sums[m][block];
        }
        q8::dots(simd, weights, values, sums)
    }

    /// Adds a block's integer products, times the scales of the weights and of the activations.
    #[inline(always)]
    fn scale<I: Simd>(
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
fn rows_of<T, const M: usize>(x: &[T], row: usize, stride: usize, length: usize) -> [&[T]; M] {
    let mut rows: [&[T]; M] = [&[]; M];
    for m in 0..M {
        rows[m] = &x[(row + m) * stride..][..length];
    }
    rows
}

/// Returns one stretch of `len` elements of each of `M` rows. The known length removes bounds
/// checks from the inner loops.
#[inline(always)]
fn parts<'a, T, const M: usize>(rows: &[&'a [T]; M], stretch: usize, len: usize) -> [&'a [T]; M] {
    let mut parts: [&[T]; M] = [&[]; M];
    for m in 0..M {
        parts[m] = &rows[m][stretch * len..][..len];
    }
    parts
}
