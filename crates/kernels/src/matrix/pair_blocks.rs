//! Products in bf16 in the order of AMX's instruction: see [`Bf16Order`](crate::simd::Bf16Order).

use super::Matrix;
use super::activations::PAIRS;
use super::runs::{Operands, Place, Runs, Sums};
use super::tile_interleave::{TILES, TileInterleave};
use crate::simd::{LANES, Simd, add_pair_block};

/// Pairs of weights of a segment's columns in some interleaved tiles, from the first of them to the
/// last one's last pair.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) pairs: &'a [u32],
    /// Number of tiles in the group, whose pairs of the same columns are beside each other.
    pub(super) beside: usize,
}

/// Pairs of activations of a segment's columns, a slice for each of `R` runs, block by block.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'a, const R: usize> {
    pub(super) runs: [&'a [u32]; R],
    /// Number of rows of a run.
    pub(super) rows: usize,
    /// True if the weights were not multiplied with other runs before.
    pub(super) is_first: bool,
}

/// Way to compute the sums of a segment.
pub(super) trait Unit {
    /// Prepares products of runs of `rows` rows with segments of `pairs` pairs.
    fn new(rows: usize, pairs: usize) -> Self;

    /// Computes the sums of `T` tiles: those of the first run, then those of the second.
    fn segment<const R: usize, const T: usize>(
        &mut self,
        weights: Weights<'_>,
        x: Pairs<'_, R>,
        sums: &mut [Sums; TILES],
    );
}

/// Weights and activations in pairs of bf16, the activations run by run and in blocks.
pub(super) struct PairBlocks<'a, U> {
    data: &'a [u32],
    x: &'a [u32],
    interleave: TileInterleave,
    /// Pairs in a row, and in a segment.
    width: usize,
    segment: usize,
    runs: Runs,
    unit: U,
}

impl<'a, U: Unit> PairBlocks<'a, U> {
    pub(super) fn new(matrix: &Matrix, data: &'a [u32], x: &'a [u32], runs: Runs) -> Self {
        let width = matrix.columns / 2;
        let segment = width / matrix.segments;
        let (interleave, unit) = (matrix.interleave, U::new(runs.rows, segment));
        Self { data, x, interleave, width, segment, runs, unit }
    }
}

impl<U: Unit> Operands for PairBlocks<'_, U> {
    #[inline(always)]
    fn segment<I: Simd, const R: usize, const T: usize>(
        &mut self,
        _: I,
        place: Place,
        run: usize,
        sums: &mut [Sums; TILES],
    ) {
        let (segment, Runs { rows, .. }) = (self.segment, self.runs);
        let beside = self.interleave.beside(place.tile).len();
        // A stretch is a pair of columns.
        let first = self.interleave.before(place.tile, place.segment * segment);
        let pairs = &self.data[first * LANES..][..((segment - 1) * beside + T) * LANES];
        let mut runs: [&[u32]; R] = [&[]; R];
        for (run, of_run) in (run..).zip(&mut runs) {
            let first = run * self.width + place.segment * segment;
            *of_run = &self.x[first * rows..][..segment * rows];
        }
        let x = Pairs { runs, rows, is_first: run == 0 };
        self.unit.segment::<R, T>(Weights { pairs, beside }, x, sums);
    }
}

/// Computation number by number, as the products are defined.
pub(super) struct Definition;

impl Unit for Definition {
    fn new(_: usize, _: usize) -> Self {
        Self
    }

    fn segment<const R: usize, const T: usize>(
        &mut self,
        weights: Weights<'_>,
        x: Pairs<'_, R>,
        sums: &mut [Sums; TILES],
    ) {
        let groups = weights.pairs.as_chunks::<LANES>().0;
        for (run, sums) in x.runs.into_iter().zip(sums.chunks_mut(T)) {
            for (tile, sums) in sums.iter_mut().enumerate() {
                for (row, lanes) in sums.iter_mut().enumerate().take(x.rows) {
                    for (lane, sum) in lanes.iter_mut().enumerate() {
                        *sum = 0.0;
                        let blocks = groups.chunks(PAIRS * weights.beside);
                        for (block, of_x) in blocks.zip(run.chunks(PAIRS * x.rows)) {
                            let width = of_x.len() / x.rows;
                            let of_x = &of_x[row * width..][..width];
                            let pairs = block.chunks(weights.beside);
                            let pairs = pairs.map(|tiles| tiles[tile][lane]);
                            *sum = add_pair_block(*sum, &pairs.zip(of_x.iter().copied()));
                        }
                    }
                }
            }
        }
    }
}
