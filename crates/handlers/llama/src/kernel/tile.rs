//! Products of a matrix's tiles with rows of activations.
//!
//! One nest for all formats: tile, rows, segment, column. How many rows go together changes what is
//! loaded again, and nothing else: each sum takes its terms in the order of the columns.

use std::ops::Range;

use super::q8::{self, TILE_BLOCK};
use super::row::BLOCK;
use super::simd::Simd;
use super::{LANES, Lanes, Tier, Work, ask_ahead, kquants};
use crate::matrix::{Data, Matrix, SEGMENTS};

/// The most rows that go together: as many as find room for their sums in the registers, of which
/// AVX2 has two times eight. Bytes need some for their products.
const ROWS: usize = 5;
const ROWS_OF_BYTES: usize = 4;

/// Rows of activations, as a matrix's format wants them.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    /// Rows that begin `stride` numbers apart.
    Float { x: &'a [f32], stride: usize },
    /// `[rows, columns]` in blocks of 32.
    Quantised(Quantised<'a, i32>),
    /// The same in blocks of 256.
    Wide(Quantised<'a, i16>),
}

/// Rows in blocks, as [`InBlocks`](super::row::InBlocks) makes them.
#[derive(Clone, Copy)]
pub(crate) struct Quantised<'a, T> {
    pub(crate) columns: usize,
    /// `[rows, columns]`.
    pub(crate) values: &'a [i8],
    /// Of each block.
    pub(crate) scales: &'a [f32],
    /// Of each 32 values, or of each 16 where the matrix is in Q6_K.
    pub(crate) sums: &'a [T],
}

/// What becomes of a product: 16 numbers of one row of activations.
pub(crate) trait Store {
    /// It is inlined always: see [`Work`].
    fn store(&mut self, row: usize, tile: usize, lanes: &Lanes);
}

/// Multiplies some tiles with all rows.
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
        match (&self.matrix.data, self.input) {
            (Data::Q4K(data), Input::Wide(x)) => self.wide(simd, data, x),
            (Data::Q5K(data), Input::Wide(x)) => self.wide(simd, data, x),
            (Data::Q6K(data), Input::Wide(x)) => self.wide(simd, data, x),
            (Data::F32(_) | Data::Bf16(_) | Data::F16(_), _) => self.multiply(simd, ROWS),
            _ => self.multiply(simd, ROWS_OF_BYTES),
        }
    }
}

impl<S: Store> Multiply<'_, S> {
    /// In as many groups of at most `most` rows as must be, of about the same size: one row alone
    /// waits for each of its sums.
    #[inline(always)]
    fn multiply(&mut self, simd: impl Simd, most: usize) {
        let mut waiting = Waiting::new();
        let groups = self.rows.div_ceil(most);
        for tile in self.tiles.clone() {
            let mut row = 0;
            for group in 0..groups {
                let end = (group + 1) * self.rows / groups;
                match end - row {
                    1 => self.group::<1>(simd, tile, row, &mut waiting),
                    2 => self.group::<2>(simd, tile, row, &mut waiting),
                    3 => self.group::<3>(simd, tile, row, &mut waiting),
                    4 => self.group::<4>(simd, tile, row, &mut waiting),
                    _ => self.group::<5>(simd, tile, row, &mut waiting),
                }
                row = end;
            }
        }
    }

    /// The same with blocks of 256, of tiles that take turns.
    #[inline(always)]
    fn wide<B: kquants::Block>(&mut self, simd: impl Simd, data: &[B], x: Quantised<'_, i16>) {
        let mut waiting = [const { Waiting::new() }; kquants::TILES];
        let groups = self.rows.div_ceil(ROWS_OF_BYTES);
        let count = self.matrix.columns / kquants::BLOCK;
        let mut tile = self.tiles.start;
        while tile < self.tiles.end {
            let (first, beside) = kquants::beside(tile, self.matrix.tiles());
            let end = self.tiles.end.min(first + beside);
            let blocks = Turns { data: &data[first * count..][..beside * count], first, beside };
            let mut row = 0;
            for group in 0..groups {
                let next = (group + 1) * self.rows / groups;
                let place = (tile..end, row);
                match next - row {
                    1 => self.in_turns::<_, 1>(simd, &blocks, place, x, &mut waiting),
                    2 => self.in_turns::<_, 2>(simd, &blocks, place, x, &mut waiting),
                    3 => self.in_turns::<_, 3>(simd, &blocks, place, x, &mut waiting),
                    _ => self.in_turns::<_, 4>(simd, &blocks, place, x, &mut waiting),
                }
                row = next;
            }
            tile = end;
        }
    }

    /// All segments of `M` rows' products with tiles that take turns.
    #[inline(always)]
    fn in_turns<B: kquants::Block, const M: usize>(
        &mut self,
        simd: impl Simd,
        blocks: &Turns<'_, B>,
        (tiles, row): (Range<usize>, usize),
        x: Quantised<'_, i16>,
        waiting: &mut [Waiting; kquants::TILES],
    ) {
        let x = WideRows::<M>::new(x, row, const { kquants::BLOCK / B::SUMMED });
        let segments = self.matrix.segments;
        let length = self.matrix.columns / kquants::BLOCK / segments;
        let own = tiles.start - blocks.first..tiles.end - blocks.first;
        let mut sums = [[simd.splat(0.0); M]; kquants::TILES];
        for segment in 0..segments {
            sums = [[simd.splat(0.0); M]; kquants::TILES];
            for at in segment * length..(segment + 1) * length {
                let (values, of_x, scales) = x.block(at);
                for (turn, sums) in own.clone().zip(&mut sums) {
                    let block = &blocks.data[at * blocks.beside + turn];
                    kquants::add(simd, block, values, of_x, scales, sums);
                }
            }
            for (waiting, sums) in waiting.iter_mut().zip(&mut sums) {
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
    fn group<const M: usize>(
        &mut self,
        simd: impl Simd,
        tile: usize,
        row: usize,
        waiting: &mut Waiting,
    ) {
        let columns = self.matrix.columns;
        match (&self.matrix.data, self.input) {
            (Data::F32(data), Input::Float { x, stride }) => {
                let products = Columns::<_, 1, M>::new(data, tile, columns, x, row, stride);
                self.sum(simd, (tile, row), &products, waiting);
            }
            (Data::Bf16(data), Input::Float { x, stride }) => {
                let products = Columns::<_, 2, M>::new(data, tile, columns, x, row, stride);
                self.sum(simd, (tile, row), &products, waiting);
            }
            (Data::F16(data), Input::Float { x, stride }) => {
                let products = Columns::<_, 1, M>::new(data, tile, columns, x, row, stride);
                self.sum(simd, (tile, row), &products, waiting);
            }
            (Data::Q8 { scales, values }, Input::Quantised(x)) if M <= ROWS_OF_BYTES => {
                let count = columns / BLOCK;
                let first = tile * count;
                let blocks = Blocks {
                    values: values[first * TILE_BLOCK..][..count * TILE_BLOCK].as_chunks().0,
                    scales: scales[first * LANES..][..count * LANES].as_chunks().0,
                    x: Rows::<M>::new(x, row),
                };
                self.sum::<_, M>(simd, (tile, row), &blocks, waiting);
            }
            _ => unreachable!("the input is of the matrix's format"),
        }
    }

    /// All segments of `M` rows' products.
    #[inline(always)]
    fn sum<I: Simd, const M: usize>(
        &mut self,
        simd: I,
        (tile, row): (usize, usize),
        products: &impl Products<M>,
        waiting: &mut Waiting,
    ) {
        let segments = self.matrix.segments;
        let length = products.len() / segments;
        let mut sums = [simd.splat(0.0); M];
        for segment in 0..segments {
            sums = [simd.splat(0.0); M];
            products.add(simd, segment * length..(segment + 1) * length, &mut sums);
            waiting.end(simd, segment, segments, &mut sums);
        }
        for (m, sum) in sums.into_iter().enumerate() {
            let mut lanes = [0.0; LANES];
            simd.store(sum, &mut lanes);
            self.store(row + m, tile, lanes);
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

/// Each row's sums that wait for their neighbour in the tree that adds up the segments.
struct Waiting([[Lanes; ROWS]; SEGMENTS.ilog2() as usize]);

impl Waiting {
    #[inline(always)]
    const fn new() -> Self {
        Self([[[0.0; LANES]; ROWS]; SEGMENTS.ilog2() as usize])
    }

    /// Ends a segment. The tree adds neighbours, then neighbouring pairs: with every second segment
    /// its pair is whole, with every fourth its pair's pair, and with the last one everything.
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

/// A tile and `M` rows beside it.
trait Products<const M: usize> {
    /// Columns, or whatever the format counts them in.
    fn len(&self) -> usize;

    /// Adds the products of some columns. It is inlined always: see [`Work`].
    fn add<I: Simd>(&self, simd: I, columns: Range<usize>, sums: &mut [I::Vector; M]);
}

/// What a tile has for each `C` columns: 16 rows' weights, which become as many vectors.
trait Weights<const C: usize>: Sized {
    /// It is inlined always: see [`Work`].
    fn vectors<I: Simd>(simd: I, weights: &[Self; LANES]) -> [I::Vector; C];
}

impl Weights<1> for f32 {
    #[inline(always)]
    fn vectors<I: Simd>(simd: I, weights: &[Self; LANES]) -> [I::Vector; 1] {
        [simd.load(weights)]
    }
}

/// In f16.
impl Weights<1> for u16 {
    #[inline(always)]
    fn vectors<I: Simd>(simd: I, weights: &[Self; LANES]) -> [I::Vector; 1] {
        [simd.halves(weights)]
    }
}

/// Two in bf16.
impl Weights<2> for u32 {
    #[inline(always)]
    fn vectors<I: Simd>(simd: I, weights: &[Self; LANES]) -> [I::Vector; 2] {
        simd.pairs(weights)
    }
}

/// A tile of numbers.
struct Columns<'a, W, const C: usize, const M: usize> {
    weights: &'a [[W; LANES]],
    x: [&'a [[f32; C]]; M],
}

impl<'a, W, const C: usize, const M: usize> Columns<'a, W, C, M> {
    /// The tile with the rows from `row` on, which are `stride` apart.
    #[inline(always)]
    fn new(
        data: &'a [W],
        tile: usize,
        columns: usize,
        x: &'a [f32],
        row: usize,
        stride: usize,
    ) -> Self {
        let length = columns / C * LANES;
        let mut chunks: [&[[f32; C]]; M] = [&[]; M];
        for (chunks, x) in chunks.iter_mut().zip(rows_of::<_, M>(x, row, stride, columns)) {
            *chunks = x.as_chunks().0;
        }
        Self { weights: data[tile * length..][..length].as_chunks().0, x: chunks }
    }
}

impl<W: Weights<C>, const C: usize, const M: usize> Products<M> for Columns<'_, W, C, M> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.weights.len()
    }

    #[inline(always)]
    fn add<I: Simd>(&self, simd: I, range: Range<usize>, sums: &mut [I::Vector; M]) {
        let x = parts(&self.x, &range);
        for (k, weights) in self.weights[range].iter().enumerate() {
            ask_ahead(weights);
            let weights = W::vectors(simd, weights);
            for c in 0..C {
                for m in 0..M {
                    sums[m] = simd.fused(weights[c], simd.splat(x[m][k][c]), sums[m]);
                }
            }
        }
    }
}

/// A tile in blocks.
struct Blocks<'a, const M: usize> {
    values: &'a [[i8; TILE_BLOCK]],
    scales: &'a [[u16; LANES]],
    x: Rows<'a, M>,
}

impl<const M: usize> Products<M> for Blocks<'_, M> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.scales.len()
    }

    #[inline(always)]
    fn add<I: Simd>(&self, simd: I, blocks: Range<usize>, sums: &mut [I::Vector; M]) {
        for block in blocks {
            let products = self.x.bytes(I::TIER, &self.values[block], block);
            self.x.scale(simd, &products, simd.halves(&self.scales[block]), block, sums);
        }
    }
}

/// `M` rows in blocks.
struct Rows<'a, const M: usize> {
    values: [&'a [[i8; BLOCK]]; M],
    scales: [&'a [f32]; M],
    sums: [&'a [i32]; M],
}

/// The blocks of tiles that take turns.
struct Turns<'a, B> {
    data: &'a [B],
    /// The first of the tiles, and how many they are.
    first: usize,
    beside: usize,
}

/// `M` rows in blocks of 256.
struct WideRows<'a, const M: usize> {
    values: [&'a [[i8; kquants::BLOCK]]; M],
    scales: [&'a [f32]; M],
    sums: [&'a [i16]; M],
    /// How many sums a block has.
    summed: usize,
}

/// A block of each row: values, their sums, scales.
type WideBlocks<'a, const M: usize> = ([&'a [i8; kquants::BLOCK]; M], [&'a [i16]; M], [f32; M]);

impl<'a, const M: usize> WideRows<'a, M> {
    #[inline(always)]
    fn new(x: Quantised<'a, i16>, row: usize, summed: usize) -> Self {
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
    fn new(x: Quantised<'a, i32>, row: usize) -> Self {
        let blocks = x.columns / BLOCK;
        Self {
            values: rows_of(x.values.as_chunks().0, row, blocks, blocks),
            scales: rows_of(x.scales, row, blocks, blocks),
            sums: rows_of(x.sums, row, blocks, blocks),
        }
    }

    #[inline(always)]
    fn bytes(&self, tier: Tier, weights: &[i8; TILE_BLOCK], block: usize) -> [[i32; LANES]; M] {
        let (mut values, mut sums) = ([&[0; BLOCK]; M], [0; M]);
        for m in 0..M {
            values[m] = &self.values[m][block];
            sums[m] = self.sums[m][block];
        }
        q8::dots(tier, weights, values, sums)
    }

    /// Adds a block's products, which are integers, times the scales of both sides.
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

/// `M` rows of `length`, which begin `stride` apart. In loops, as everything here: a closure need
/// not be compiled for the tier.
#[inline(always)]
fn rows_of<T, const M: usize>(x: &[T], row: usize, stride: usize, length: usize) -> [&[T]; M] {
    let mut rows: [&[T]; M] = [&[]; M];
    for m in 0..M {
        rows[m] = &x[(row + m) * stride..][..length];
    }
    rows
}

/// Some columns of `M` rows, of the range's length: no bound is looked at within the loops.
#[inline(always)]
fn parts<'a, T, const M: usize>(rows: &[&'a [T]; M], range: &Range<usize>) -> [&'a [T]; M] {
    let mut parts: [&[T]; M] = [&[]; M];
    for m in 0..M {
        parts[m] = &rows[m][range.start..][..range.len()];
    }
    parts
}
