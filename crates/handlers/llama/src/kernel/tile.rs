//! Products of a matrix's tiles with rows of activations.
//!
//! One nest for all formats: tile, rows, segment, piece of its columns, rows four at a time, column.
//! How many rows go together, and how long a piece is, changes what is loaded again, and nothing
//! else: each sum takes its terms in the order of the columns.

use std::ops::Range;

use super::half::widen_halves;
use super::math::tree_of_rows;
use super::q8::{self, TILE_BLOCK};
use super::row::BLOCK;
use super::{LANES, Lanes, Tier, Work, ask_ahead};
use crate::matrix::{Data, Matrix, SEGMENTS};

/// Many rows of bytes go together through a piece of a tile, which is prepared for them and stays in
/// the core's first cache. Rows of floats gain nothing by it: they are four times as long.
const MANY: usize = 64;

/// How many rows are enough to prepare a piece for.
const WORTH: usize = 32;

/// Columns of a piece: 8 KiB in 16 bits.
const PIECE: usize = 256;

/// Rows of activations, as a matrix's format wants them.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    /// Rows that begin `stride` numbers apart.
    Float { x: &'a [f32], stride: usize },
    /// `[rows, columns]` in blocks.
    Quantised(Quantised<'a>),
}

/// Rows in blocks of 32, as [`Quantise`](super::row::Quantise) makes them.
#[derive(Clone, Copy)]
pub(crate) struct Quantised<'a> {
    pub(crate) columns: usize,
    /// `[rows, columns]`.
    pub(crate) values: &'a [i8],
    /// Of each block.
    pub(crate) scales: &'a [f32],
    /// Of each block's values.
    pub(crate) sums: &'a [i32],
    /// The values again, if [`widens`]; else empty.
    pub(crate) wide: &'a [i16],
}

/// Whether so many rows are wanted in 16 bits as well.
pub(crate) fn widens(tier: Tier, rows: usize) -> bool {
    rows >= WORTH && q8::widens(tier)
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
    fn run(mut self, tier: Tier) {
        let many = self.rows >= WORTH && matches!(self.matrix.data, Data::Q8 { .. });
        let mut room = if many { Some(Room::new()) } else { None };
        // As many groups as must be, of about the same size: a piece is not prepared for one row.
        let group = self.rows.div_ceil(self.rows.div_ceil(MANY).max(1));
        for tile in self.tiles.clone() {
            let mut row = 0;
            while row < self.rows {
                let left = self.rows - row;
                row += match &mut room {
                    Some(room) => self.group::<MANY>(tier, tile, row, left.min(group), Some(room)),
                    // As much room for sums as is used: to clear it costs as much as a column.
                    None => match left {
                        1 => self.group::<1>(tier, tile, row, 1, None),
                        2 => self.group::<2>(tier, tile, row, 2, None),
                        3 => self.group::<3>(tier, tile, row, 3, None),
                        _ => self.group::<4>(tier, tile, row, 4, None),
                    },
                };
            }
        }
    }
}

/// Columns of a tile.
struct Piece<'a> {
    weights: Weights<'a>,
    /// The first column, and how many there are.
    at: usize,
    length: usize,
}

enum Weights<'a> {
    Floats(&'a [f32]),
    Pairs(&'a [u32]),
    Halves(&'a [u16]),
    Blocks(&'a [i8], &'a [u16]),
    /// With the scales widened, and the values where the tier has a use for it.
    Prepared(Values<'a>, &'a [f32]),
}

enum Values<'a> {
    Bytes(&'a [i8]),
    Wide(&'a [i16]),
}

/// Where a piece is prepared.
struct Room {
    scales: [f32; PIECE / BLOCK * LANES],
    values: [i16; PIECE * LANES],
}

impl Room {
    #[inline(always)]
    fn new() -> Self {
        Self { scales: [0.0; PIECE / BLOCK * LANES], values: [0; PIECE * LANES] }
    }
}

impl<S: Store> Multiply<'_, S> {
    /// At most `G` rows, and how many they were.
    #[inline(always)]
    fn group<const G: usize>(
        &mut self,
        tier: Tier,
        tile: usize,
        row: usize,
        rows: usize,
        mut room: Option<&mut Room>,
    ) -> usize {
        let segments = self.matrix.segments;
        let length = self.matrix.columns / segments;
        let mut sums = [[[0.0; LANES]; SEGMENTS]; G];
        for segment in 0..segments {
            let (mut at, end) = (segment * length, (segment + 1) * length);
            while at < end {
                let piece = piece(tier, self.matrix, tile, at..end, room.as_deref_mut());
                let mut m = 0;
                while m < rows {
                    let sums = &mut sums[m..rows];
                    // Of a group of four or less, one of these is left when it is compiled.
                    m += match if G > 4 { rows - m } else { G } {
                        1 => add::<1>(tier, &piece, self.input, row + m, segment, sums),
                        2 => add::<2>(tier, &piece, self.input, row + m, segment, sums),
                        3 => add::<3>(tier, &piece, self.input, row + m, segment, sums),
                        _ => add::<4>(tier, &piece, self.input, row + m, segment, sums),
                    };
                }
                at += piece.length;
            }
        }
        let bias = self.matrix.bias(tile);
        for (m, sums) in sums[..rows].iter_mut().enumerate() {
            let mut lanes = tree_of_rows(&mut sums[..segments]);
            if let Some(bias) = bias {
                for lane in 0..LANES {
                    lanes[lane] += bias[lane];
                }
            }
            self.store.store(row + m, tile, &lanes);
        }
        rows
    }
}

/// The tile's next columns of a segment: all that are left, or as many as there is room for.
#[inline(always)]
fn piece<'a>(
    tier: Tier,
    matrix: &'a Matrix,
    tile: usize,
    columns: Range<usize>,
    room: Option<&'a mut Room>,
) -> Piece<'a> {
    let (at, left) = (columns.start, columns.len());
    let first = tile * matrix.columns + at;
    let length = if room.is_none() { left } else { left.min(PIECE) };
    let weights = match &matrix.data {
        Data::F32(data) => Weights::Floats(&data[first * LANES..][..length * LANES]),
        Data::Bf16(data) => Weights::Pairs(&data[first / 2 * LANES..][..length / 2 * LANES]),
        Data::F16(data) => Weights::Halves(&data[first * LANES..][..length * LANES]),
        Data::Q8 { scales, values } => {
            let (first, blocks) = (first / BLOCK, length / BLOCK);
            let values = &values[first * TILE_BLOCK..][..blocks * TILE_BLOCK];
            let scales = &scales[first * LANES..][..blocks * LANES];
            match room {
                None => Weights::Blocks(values, scales),
                Some(room) => prepared(tier, values, scales, room),
            }
        }
    };
    Piece { weights, at, length }
}

#[inline(always)]
fn prepared<'a>(tier: Tier, values: &'a [i8], scales: &[u16], room: &'a mut Room) -> Weights<'a> {
    let lanes = &mut room.scales[..scales.len()];
    for (scales, lanes) in scales.as_chunks().0.iter().zip(lanes.as_chunks_mut().0) {
        *lanes = widen_halves(tier, scales);
    }
    let values = if q8::widens(tier) {
        let wide = &mut room.values[..values.len()];
        q8::widen(tier, values, wide);
        Values::Wide(wide)
    } else {
        Values::Bytes(values)
    };
    Weights::Prepared(values, lanes)
}

/// Adds a piece's products to the sums of `M` rows.
#[inline(always)]
fn add<const M: usize>(
    tier: Tier,
    piece: &Piece<'_>,
    input: Input<'_>,
    row: usize,
    segment: usize,
    sums: &mut [[Lanes; SEGMENTS]],
) -> usize {
    let (at, length) = (piece.at, piece.length);
    let mut lanes = [[0.0; LANES]; M];
    for m in 0..M {
        lanes[m] = sums[m][segment];
    }
    match (&piece.weights, input) {
        (Weights::Floats(weights), Input::Float { x, stride }) => {
            floats::<M>(weights, rows_of(x, row, stride, at, length), &mut lanes);
        }
        (Weights::Pairs(weights), Input::Float { x, stride }) => {
            pairs::<M>(weights, rows_of(x, row, stride, at, length), &mut lanes);
        }
        (Weights::Halves(weights), Input::Float { x, stride }) => {
            halves::<M>(tier, weights, rows_of(x, row, stride, at, length), &mut lanes);
        }
        (Weights::Blocks(values, of_rows), Input::Quantised(x)) => {
            let x = Rows::<M>::new(x, row, at, length);
            for (block, of_rows) in of_rows.as_chunks().0.iter().enumerate() {
                let products = x.bytes(tier, values, block);
                x.scale(&products, &widen_halves(tier, of_rows), block, &mut lanes);
            }
        }
        (Weights::Prepared(Values::Bytes(values), of_rows), Input::Quantised(x)) => {
            let x = Rows::<M>::new(x, row, at, length);
            for (block, of_rows) in of_rows.as_chunks().0.iter().enumerate() {
                x.scale(&x.bytes(tier, values, block), of_rows, block, &mut lanes);
            }
        }
        (Weights::Prepared(Values::Wide(values), of_rows), Input::Quantised(x)) => {
            let x = Rows::<M>::new(x, row, at, length);
            for (block, of_rows) in of_rows.as_chunks().0.iter().enumerate() {
                x.scale(&x.wide(tier, values, block), of_rows, block, &mut lanes);
            }
        }
        _ => unreachable!("the input is of the matrix's format"),
    }
    for m in 0..M {
        sums[m][segment] = lanes[m];
    }
    M
}

/// Some columns of `M` rows. In loops, as everything here: a closure need not be compiled for the
/// tier.
#[inline(always)]
fn rows_of<T, const M: usize>(
    x: &[T],
    row: usize,
    stride: usize,
    at: usize,
    length: usize,
) -> [&[T]; M] {
    let mut rows: [&[T]; M] = [&[]; M];
    for m in 0..M {
        rows[m] = &x[(row + m) * stride + at..][..length];
    }
    rows
}

/// Some columns of `M` rows in blocks.
struct Rows<'a, const M: usize> {
    values: [&'a [i8]; M],
    scales: [&'a [f32]; M],
    sums: [&'a [i32]; M],
    wide: [&'a [i16]; M],
}

impl<'a, const M: usize> Rows<'a, M> {
    #[inline(always)]
    fn new(x: Quantised<'a>, row: usize, at: usize, length: usize) -> Self {
        let (columns, wide) = (x.columns, !x.wide.is_empty());
        let (blocks, block, count) = (columns / BLOCK, at / BLOCK, length / BLOCK);
        Self {
            values: rows_of(x.values, row, columns, at, length),
            scales: rows_of(x.scales, row, blocks, block, count),
            sums: rows_of(x.sums, row, blocks, block, count),
            wide: if wide { rows_of(x.wide, row, columns, at, length) } else { [&[]; M] },
        }
    }

    #[inline(always)]
    fn bytes(&self, tier: Tier, weights: &[i8], block: usize) -> [[i32; LANES]; M] {
        let (mut values, mut sums) = ([&[0; BLOCK]; M], [0; M]);
        for m in 0..M {
            values[m] = &self.values[m].as_chunks().0[block];
            sums[m] = self.sums[m][block];
        }
        q8::dots(tier, &weights.as_chunks().0[block], values, sums)
    }

    #[inline(always)]
    fn wide(&self, tier: Tier, weights: &[i16], block: usize) -> [[i32; LANES]; M] {
        let mut values = [&[0; BLOCK]; M];
        for (values, row) in values.iter_mut().zip(self.wide) {
            *values = &row.as_chunks().0[block];
        }
        q8::wide_dots(tier, &weights.as_chunks().0[block], values)
    }

    /// Adds a block's products, which are integers, times the scales of both sides.
    #[inline(always)]
    fn scale(
        &self,
        products: &[[i32; LANES]; M],
        of_rows: &Lanes,
        block: usize,
        sums: &mut [Lanes; M],
    ) {
        for m in 0..M {
            let scale = self.scales[m][block];
            for lane in 0..LANES {
                let both = of_rows[lane] * scale;
                sums[m][lane] = (products[m][lane] as f32).mul_add(both, sums[m][lane]);
            }
        }
    }
}

#[inline(always)]
fn floats<const M: usize>(weights: &[f32], x: [&[f32]; M], sums: &mut [Lanes; M]) {
    let weights = weights.as_chunks::<LANES>().0;
    let x = as_long(x, weights.len());
    for (k, weights) in weights.iter().enumerate() {
        ask_ahead(weights);
        for m in 0..M {
            fused(&mut sums[m], weights, x[m][k]);
        }
    }
}

#[inline(always)]
fn pairs<const M: usize>(weights: &[u32], x: [&[f32]; M], sums: &mut [Lanes; M]) {
    let weights = weights.as_chunks::<LANES>().0;
    let mut of_two: [&[[f32; 2]]; M] = [&[]; M];
    for m in 0..M {
        of_two[m] = x[m].as_chunks().0;
    }
    let x = as_long(of_two, weights.len());
    for (pair, weights) in weights.iter().enumerate() {
        ask_ahead(weights);
        let (mut first, mut second) = ([0.0; LANES], [0.0; LANES]);
        for lane in 0..LANES {
            first[lane] = f32::from_bits(weights[lane] << 16);
            second[lane] = f32::from_bits(weights[lane] & 0xffff_0000);
        }
        for m in 0..M {
            fused(&mut sums[m], &first, x[m][pair][0]);
            fused(&mut sums[m], &second, x[m][pair][1]);
        }
    }
}

#[inline(always)]
fn halves<const M: usize>(tier: Tier, weights: &[u16], x: [&[f32]; M], sums: &mut [Lanes; M]) {
    let weights = weights.as_chunks::<LANES>().0;
    let x = as_long(x, weights.len());
    for (k, weights) in weights.iter().enumerate() {
        ask_ahead(weights);
        let weights = widen_halves(tier, weights);
        for m in 0..M {
            fused(&mut sums[m], &weights, x[m][k]);
        }
    }
}

/// The first `length` of each, which is then known: no bound is looked at within the loops.
#[inline(always)]
fn as_long<T, const M: usize>(mut x: [&[T]; M], length: usize) -> [&[T]; M] {
    for x in &mut x {
        *x = &x[..length];
    }
    x
}

#[inline(always)]
fn fused(sums: &mut Lanes, weights: &Lanes, x: f32) {
    for lane in 0..LANES {
        sums[lane] = weights[lane].mul_add(x, sums[lane]);
    }
}
