//! Products with the tile registers of AMX.

#![expect(unsafe_code, reason = "tile registers are loaded from addresses")]

use super::Matrix;
use super::activations::{PAIRS, Quantized, room};
use super::pair_blocks::{Pairs, Unit, Weights};
use super::runs::{MAX_ROWS, Operands, Place, Runs, Sums};
use super::tile_interleave::{TILES, TileInterleave};
use crate::disjoint_slice::DisjointSlice;
use crate::prefetch::{distance, prefetch_ahead};
use crate::q8::TILE_BLOCK;
use crate::rowwise::BLOCK;
use crate::simd::amx::{ROW_BYTES, Registers};
use crate::simd::{LANES, Simd};
use crate::thread_pool::ThreadPool;

/// Registers for activations and weights, in blocks of [`PAIRS`] and in the rest of a segment. The
/// registers below them hold sums.
const X: usize = 4;
const WEIGHTS: usize = 5;
const X_REST: usize = 6;
const WEIGHTS_REST: usize = 7;

/// Computation of products in bf16 with AMX.
pub(super) struct Bf16Unit {
    registers: Registers,
    /// Rows of a run.
    rows: usize,
}

impl Unit for Bf16Unit {
    fn new(rows: usize, pairs: usize) -> Self {
        let rest = (pairs % PAIRS).max(1);
        let sums = (rows, ROW_BYTES);
        let shapes = [
            sums,
            sums,
            sums,
            sums,
            (rows, ROW_BYTES),
            (PAIRS, ROW_BYTES),
            (rows, 4 * rest),
            (rest, ROW_BYTES),
        ];
        Self { registers: Registers::new(shapes), rows }
    }

    #[inline(always)]
    fn segment<const R: usize, const T: usize>(
        &mut self,
        weights: Weights<'_>,
        x: Pairs<'_, R>,
        sums: &mut [Sums; TILES],
    ) {
        let Pairs { runs, rows, is_first } = x;
        let count = runs[0].len() / rows;
        assert!(rows == self.rows && R * T <= TILES && T <= weights.beside && count > 0);
        assert!(weights.pairs.len() >= ((count - 1) * weights.beside + T) * LANES);
        let mut from = [std::ptr::null(); R];
        for r in 0..R {
            assert!(runs[r].len() == count * rows);
            from[r] = runs[r].as_ptr().cast::<u8>();
        }
        let mut at = weights.pairs.as_ptr().cast::<u8>();
        let stride = weights.beside * ROW_BYTES;
        // The first runs read the weights from memory.
        let distance = if is_first { distance() } else { 0 };
        let registers = &mut self.registers;
        registers.zero::<0>();
        registers.zero::<1>();
        registers.zero::<2>();
        registers.zero::<3>();
        // SAFETY: the segment of each run and tile lies within the slices, as was checked, and the
        // registers have the shapes of a block and of the rest.
        unsafe {
            for _ in 0..count / PAIRS {
                if distance > 0 {
                    for pair in 0..PAIRS {
                        for tile in 0..T {
                            let line = at.wrapping_add(pair * stride + tile * ROW_BYTES);
                            prefetch_ahead(line, distance);
                        }
                    }
                }
                self.block::<R, T, X, WEIGHTS>(from, ROW_BYTES, at, stride);
                for from in &mut from {
                    *from = from.wrapping_add(rows * ROW_BYTES);
                }
                at = at.wrapping_add(PAIRS * stride);
            }
            let rest = count % PAIRS;
            if rest > 0 {
                self.block::<R, T, X_REST, WEIGHTS_REST>(from, 4 * rest, at, stride);
            }
        }
        let [first, second, third, fourth] = sums;
        let registers = &mut self.registers;
        registers.store::<0, f32>(first);
        registers.store::<1, f32>(second);
        registers.store::<2, f32>(third);
        registers.store::<3, f32>(fourth);
    }
}

impl Bf16Unit {
    /// Adds the products of a block of columns.
    ///
    /// # Safety
    ///
    /// The shapes of the two registers must be readable at these places.
    #[inline(always)]
    unsafe fn block<const R: usize, const T: usize, const X: usize, const W: usize>(
        &mut self,
        x: [*const u8; R],
        x_stride: usize,
        weights: *const u8,
        stride: usize,
    ) {
        let registers = &mut self.registers;
        // SAFETY: as this function's. With two runs, the order of the products saves a load.
        unsafe {
            registers.load::<X>(x[0], x_stride);
            registers.load::<W>(weights, stride);
            registers.add_bf16::<0, X, W>();
            if R == 1 {
                if T > 1 {
                    registers.load::<W>(weights.add(ROW_BYTES), stride);
                    registers.add_bf16::<1, X, W>();
                }
                if T > 2 {
                    registers.load::<W>(weights.add(2 * ROW_BYTES), stride);
                    registers.add_bf16::<2, X, W>();
                }
                if T > 3 {
                    registers.load::<W>(weights.add(3 * ROW_BYTES), stride);
                    registers.add_bf16::<3, X, W>();
                }
            } else if T == 1 {
                registers.load::<X>(x[1], x_stride);
                registers.add_bf16::<1, X, W>();
            } else {
                registers.load::<W>(weights.add(ROW_BYTES), stride);
                registers.add_bf16::<1, X, W>();
                registers.load::<X>(x[1], x_stride);
                registers.add_bf16::<3, X, W>();
                registers.load::<W>(weights, stride);
                registers.add_bf16::<2, X, W>();
            }
        }
    }
}

/// Blocks that the registers multiply at once, one in each register of sums.
const BLOCKS_AT_ONCE: usize = 2;

/// Integer products of some blocks.
type Counts = [[[i32; LANES]; MAX_ROWS]; BLOCKS_AT_ONCE];

/// Activations in blocks of 32 bytes, run by run.
#[derive(Clone, Copy)]
pub(super) struct ByteRuns<'a> {
    /// For each run and block: the bytes of each row.
    values: &'a [i8],
    /// For each run and block: the scale of each row, and zeros up to [`MAX_ROWS`].
    scales: &'a [[f32; MAX_ROWS]],
    runs: Runs,
}

impl<'a> ByteRuns<'a> {
    /// Least number of activation rows for which the registers are faster than vectors.
    pub(super) const MIN_ROWS: usize = 9;

    /// Brings quantized rows into the order in which the registers load them.
    pub(super) fn new(
        pool: &mut ThreadPool,
        x: Quantized<'_, i32>,
        rows: usize,
        (values, scales): (&'a mut Vec<i8>, &'a mut Vec<[f32; MAX_ROWS]>),
    ) -> Self {
        let (runs, blocks) = (Runs::of(rows), x.columns / BLOCK);
        let of_run = blocks * runs.rows * BLOCK;
        let values = room(values, runs.count * of_run);
        let scales = room(scales, runs.count * blocks);
        let parts = (DisjointSlice::new(values), DisjointSlice::new(scales));
        pool.run(runs.count, &|run| {
            // SAFETY: in both buffers, each run belongs to a single part of the job.
            let (values, scales) =
                unsafe { (parts.0.part(run * of_run, of_run), parts.1.part(run * blocks, blocks)) };
            let first = runs.first(run);
            let of_block = values.chunks_exact_mut(runs.rows * BLOCK);
            for (block, (values, scales)) in of_block.zip(scales).enumerate() {
                *scales = [0.0; MAX_ROWS];
                let rows = values.as_chunks_mut::<BLOCK>().0.iter_mut().zip(scales);
                for ((values, scale), row) in rows.zip(first..) {
                    let at = row * blocks + block;
                    (*values, *scale) = (x.values.as_chunks().0[at], x.scales[at]);
                }
            }
        });
        Self { values, scales, runs }
    }

    pub(super) fn runs(&self) -> Runs {
        self.runs
    }
}

/// Weights in Q8_0 and activations in blocks of 32 bytes.
pub(super) struct ByteBlocks<'a> {
    values: &'a [i8],
    scales: &'a [u16],
    x: ByteRuns<'a>,
    /// Blocks in a row, in a segment and in a stretch.
    blocks: usize,
    segment: usize,
    stretch: usize,
    interleave: TileInterleave,
    registers: Registers,
}

impl<'a> ByteBlocks<'a> {
    pub(super) fn new(
        matrix: &Matrix,
        (scales, values): (&'a [u16], &'a [i8]),
        x: ByteRuns<'a>,
    ) -> Self {
        let blocks = matrix.columns / BLOCK;
        let (segment, stretch) = (blocks / matrix.segments, matrix.interleave.stretch / BLOCK);
        let sums = (x.runs.rows, ROW_BYTES);
        let (of_x, weights) = ((x.runs.rows, BLOCK), (BLOCK / 4, ROW_BYTES));
        let shapes = [sums, sums, sums, sums, of_x, weights, of_x, weights];
        let (interleave, registers) = (matrix.interleave, Registers::new(shapes));
        Self { values, scales, x, blocks, segment, stretch, interleave, registers }
    }
}

impl Operands for ByteBlocks<'_> {
    #[inline(always)]
    fn segment<I: Simd, const R: usize, const T: usize>(
        &mut self,
        simd: I,
        place: Place,
        run: usize,
        sums: &mut [Sums; TILES],
    ) {
        for r in 0..R {
            for t in 0..T {
                let place = Place { tile: place.tile + t, ..place };
                self.tile(simd, place, run + r, &mut sums[r * T + t]);
            }
        }
    }
}

impl ByteBlocks<'_> {
    /// Computes the sums of a segment of one tile for a run.
    #[inline(always)]
    fn tile<I: Simd>(&mut self, simd: I, place: Place, run: usize, out: &mut Sums) {
        let of_run = self.blocks * self.x.runs.rows * BLOCK;
        let x = &self.x.values[run * of_run..][..of_run];
        let of_x = &self.x.scales[run * self.blocks..][..self.blocks];
        let mut sums = [simd.splat(0.0); MAX_ROWS];
        let mut counts = [[[[0; LANES]; MAX_ROWS]; BLOCKS_AT_ONCE]; 2];
        let count = self.segment / self.stretch;
        for stretch in place.segment * count..(place.segment + 1) * count {
            let at = self.interleave.before(place.tile, stretch) * self.stretch;
            let weights = &self.values[at * TILE_BLOCK..][..self.stretch * TILE_BLOCK];
            let mut weights = weights.as_chunks::<TILE_BLOCK>().0;
            let of_weights = &self.scales[at * LANES..][..self.stretch * LANES];
            let of_weights = of_weights.as_chunks::<LANES>().0.chunks(BLOCKS_AT_ONCE);
            let block = stretch * self.stretch;
            let mut x = &x[block * self.x.runs.rows * BLOCK..];
            let of_x = of_x[block..][..self.stretch].chunks(BLOCKS_AT_ONCE);
            let [mut now, mut next] = counts.each_mut();
            self.count(&mut weights, &mut x, now);
            for (of_weights, of_x) in of_weights.zip(of_x) {
                // The registers multiply the next blocks while these ones are scaled.
                self.count(&mut weights, &mut x, next);
                scale(simd, now, of_weights, of_x, &mut sums);
                std::mem::swap(&mut now, &mut next);
            }
        }
        for m in 0..MAX_ROWS {
            simd.store(sums[m], &mut out[m]);
        }
    }

    /// Computes the integer products of the next blocks, up to [`BLOCKS_AT_ONCE`].
    #[inline(always)]
    fn count(&mut self, weights: &mut &[[i8; TILE_BLOCK]], x: &mut &[i8], counts: &mut Counts) {
        let [first, second] = counts;
        self.count_block::<0>(weights, x, first);
        self.count_block::<1>(weights, x, second);
    }

    #[inline(always)]
    fn count_block<const SUMS: usize>(
        &mut self,
        weights: &mut &[[i8; TILE_BLOCK]],
        x: &mut &[i8],
        counts: &mut [[i32; LANES]; MAX_ROWS],
    ) {
        let Some((of_block, left)) = weights.split_first() else { return };
        let Some((of_x, left_of_x)) = x.split_at_checked(self.x.runs.rows * BLOCK) else { return };
        (*weights, *x) = (left, left_of_x);
        let registers = &mut self.registers;
        registers.zero::<SUMS>();
        // SAFETY: the weights and the activations are a block of a tile and of a run.
        unsafe {
            registers.load::<X>(of_x.as_ptr().cast(), BLOCK);
            registers.load::<WEIGHTS>(of_block.as_ptr().cast(), ROW_BYTES);
        }
        registers.add_bytes::<SUMS, X, WEIGHTS>();
        registers.store::<SUMS, i32>(counts);
    }
}

/// Adds integer products, times the scales of the weights and of the activations, to the sums of a run.
#[inline(always)]
fn scale<I: Simd>(
    simd: I,
    counts: &Counts,
    of_weights: &[[u16; LANES]],
    of_x: &[[f32; MAX_ROWS]],
    sums: &mut [I::Vector; MAX_ROWS],
) {
    // A local copy keeps the sums in registers.
    let mut own = *sums;
    for (counts, (of_weights, of_x)) in counts.iter().zip(of_weights.iter().zip(of_x)) {
        let of_weights = simd.halves(of_weights);
        for m in 0..MAX_ROWS {
            let both = simd.multiply(of_weights, simd.splat(of_x[m]));
            own[m] = simd.fused(simd.integers(&counts[m]), both, own[m]);
        }
    }
    *sums = own;
}
