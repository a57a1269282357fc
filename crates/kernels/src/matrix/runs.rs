//! Products of runs of up to sixteen activation rows, as the tile registers of AMX hold them.

use std::ops::Range;

use super::store::Store;
use super::tile_interleave::TILES;
use super::{Matrix, SEGMENTS};
use crate::simd::{LANES, Lanes, Simd, Work};

/// Largest number of activation rows in a run: those that are multiplied at once.
pub(super) const MAX_ROWS: usize = 16;

/// Sums of sixteen weight rows for the activation rows of a run.
pub(super) type Sums = [Lanes; MAX_ROWS];

/// Sums of some tiles and runs for all segments.
type SegmentSums = [[Sums; TILES]; SEGMENTS];

/// Runs of activation rows, all of the same length. The last one may begin with rows of the one
/// before.
#[derive(Clone, Copy)]
pub(super) struct Runs {
    pub(super) count: usize,
    /// Rows of a run.
    pub(super) rows: usize,
    all: usize,
}

impl Runs {
    pub(super) fn of(all: usize) -> Self {
        let count = all.div_ceil(MAX_ROWS).max(1);
        Self { count, rows: all.div_ceil(count), all }
    }

    /// Returns the first row of a run.
    pub(super) fn first(&self, run: usize) -> usize {
        (run * self.rows).min(self.all - self.rows)
    }
}

/// Segment of some tiles of one group of interleaved ones.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// First of the tiles.
    pub(super) tile: usize,
    pub(super) segment: usize,
}

/// Weights, activations and the way to multiply them.
pub(super) trait Operands {
    /// Computes the sums of a segment of `T` tiles for `R` runs from `run` on: those of the first run,
    /// then those of the second. It must be always inlined: see [`Work`].
    fn segment<I: Simd, const R: usize, const T: usize>(
        &mut self,
        simd: I,
        place: Place,
        run: usize,
        sums: &mut [Sums; TILES],
    );
}

/// Product of a range of tiles with all runs of activations.
pub(super) struct RunProducts<'a, O, S> {
    pub(super) matrix: &'a Matrix,
    pub(super) operands: O,
    pub(super) tiles: Range<usize>,
    pub(super) runs: Runs,
    pub(super) store: S,
}

impl<O: Operands, S: Store> Work for RunProducts<'_, O, S> {
    #[inline(always)]
    fn run<I: Simd>(mut self, simd: I) {
        let mut sums = [[[[0.0; LANES]; MAX_ROWS]; TILES]; SEGMENTS];
        let sums = &mut sums;
        let mut tile = self.tiles.start;
        while tile < self.tiles.end {
            let end = self.tiles.end.min(self.matrix.interleave.beside(tile).end);
            // Two runs with two tiles need the fewest loads.
            for run in (0..self.runs.count - 1).step_by(2) {
                for tile in (tile..end).step_by(2) {
                    match end - tile {
                        1 => self.runs::<I, 2, 1>(simd, tile, run, sums),
                        _ => self.runs::<I, 2, 2>(simd, tile, run, sums),
                    }
                }
            }
            if self.runs.count % 2 == 1 {
                let run = self.runs.count - 1;
                match end - tile {
                    1 => self.runs::<I, 1, 1>(simd, tile, run, sums),
                    2 => self.runs::<I, 1, 2>(simd, tile, run, sums),
                    3 => self.runs::<I, 1, 3>(simd, tile, run, sums),
                    _ => self.runs::<I, 1, TILES>(simd, tile, run, sums),
                }
            }
            tile = end;
        }
    }
}

impl<O: Operands, S: Store> RunProducts<'_, O, S> {
    /// Multiplies `R` runs from `run` on with `T` tiles of a group of interleaved ones.
    #[inline(always)]
    fn runs<I: Simd, const R: usize, const T: usize>(
        &mut self,
        simd: I,
        tile: usize,
        run: usize,
        sums: &mut SegmentSums,
    ) {
        for (segment, sums) in sums.iter_mut().enumerate().take(self.matrix.segments) {
            self.operands.segment::<I, R, T>(simd, Place { tile, segment }, run, sums);
        }
        for r in 0..R {
            let first = self.runs.first(run + r);
            // Rows that the run before has too are stored once.
            for m in (run + r) * self.runs.rows - first..self.runs.rows {
                for t in 0..T {
                    self.end(simd, first + m, tile + t, sums, (r * T + t, m));
                }
            }
        }
    }

    /// Adds up the segments of a row, neighbors first and then neighboring pairs, and stores the sum.
    #[inline(always)]
    fn end<I: Simd>(
        &mut self,
        simd: I,
        row: usize,
        tile: usize,
        sums: &SegmentSums,
        (at, m): (usize, usize),
    ) {
        let matrix = self.matrix;
        let mut parts = [simd.splat(0.0); SEGMENTS];
        for segment in 0..matrix.segments {
            parts[segment] = simd.load(&sums[segment][at][m]);
        }
        let mut left = matrix.segments;
        while left > 1 {
            left /= 2;
            for pair in 0..left {
                parts[pair] = simd.add(parts[2 * pair], parts[2 * pair + 1]);
            }
        }
        if let Some(bias) = matrix.bias(tile) {
            parts[0] = simd.add(parts[0], simd.load(bias));
        }
        let mut lanes = [0.0; LANES];
        simd.store(parts[0], &mut lanes);
        self.store.store(row, tile, &lanes);
    }
}
