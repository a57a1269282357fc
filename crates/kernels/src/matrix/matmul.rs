//! Products of a matrix with rows of activations, on all threads.

#![expect(unsafe_code, reason = "threads write to parts of a buffer that do not overlap")]

use super::activations::{InPairBlocks, InPairs, Quantized, room};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx::ByteRuns;
use super::operands::{MAX_ROWS, groups};
use super::runs::{MAX_ROWS as MAX_RUN, Runs};
use super::store::Store;
use super::tile::{Input, Multiply};
use super::{Data, Matrix};
use crate::disjoint_slice::DisjointSlice;
use crate::format::Format;
use crate::kquants::{self, Block as _};
use crate::rowwise::{BLOCK, InBlocks, Sum, swiglu};
use crate::simd::{Bf16Order, LANES, Lanes, Tier};
use crate::thread_pool::ThreadPool;

/// Rows of activations.
#[derive(Clone, Copy, Debug)]
pub struct Activations<'a> {
    /// The rows.
    pub numbers: &'a [f32],
    /// Distance from one row to the next; the first [`columns`](Matrix::columns) numbers of a row
    /// are used.
    pub stride: usize,
}

/// Buffers for the quantized form of activations. They grow as needed.
#[derive(Debug, Default)]
pub struct QuantizationBuffers {
    values: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    wide_sums: Vec<i16>,
    pairs: Vec<u32>,
    run_values: Vec<i8>,
    run_scales: Vec<[f32; MAX_RUN]>,
}

/// Last operation of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Epilogue {
    /// Writes the product.
    Set,
    /// Combines alternating gate and up tiles: `silu(gate) * up`. A row of the output has half the
    /// length of the product.
    Gate,
}

/// Destination of a product.
#[derive(Debug)]
pub struct Output<'a> {
    out: &'a mut [f32],
    stride: usize,
    first: usize,
    epilogue: Epilogue,
}

impl<'a> Output<'a> {
    /// Writes the products to `out`, with rows `stride` numbers apart.
    pub fn new(out: &'a mut [f32], stride: usize) -> Self {
        Self { out, stride, first: 0, epilogue: Epilogue::Set }
    }

    /// Writes the products from this offset within a row on.
    #[must_use]
    pub fn at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// Sets the last operation.
    #[must_use]
    pub fn epilogue(self, epilogue: Epilogue) -> Self {
        Self { epilogue, ..self }
    }
}

impl Matrix {
    /// Multiplies the first `rows` rows of activations with the whole matrix, bias included.
    ///
    /// A row of the output has [`padded`](Self::padded) numbers, or half as many with
    /// [`Epilogue::Gate`].
    ///
    /// # Panics
    ///
    /// Panics if the activations or the output have fewer rows, or if rows of the output overlap.
    pub fn multiply(
        &self,
        (pool, tier): (&mut ThreadPool, Tier),
        x: Activations<'_>,
        rows: usize,
        buffers: &mut QuantizationBuffers,
        output: Output<'_>,
    ) {
        const WIDE: usize = kquants::BLOCK;
        if rows == 0 {
            return;
        }
        let columns = self.columns;
        let QuantizationBuffers { values, scales, sums, wide_sums, pairs, run_values, run_scales } =
            buffers;
        let input = match self.format() {
            Format::Bf16 if let Some(order) = self.bf16_order => {
                let shape = (rows, columns);
                Input::Pairs(match order {
                    Bf16Order::Pairs => in_pairs((pool, tier), x, shape, pairs),
                    Bf16Order::Blocks => {
                        in_pair_blocks((pool, tier), x, shape, self.segments, pairs)
                    }
                })
            }
            Format::F32 | Format::Bf16 | Format::F16 => {
                Input::Float { x: x.numbers, stride: x.stride }
            }
            Format::Q8_0
            | Format::Q8_1
            | Format::Q4_0
            | Format::Q4_1
            | Format::Q5_0
            | Format::Q5_1
            | Format::Iq4Nl
            | Format::Mxfp4 => {
                let into = (values, scales, sums);
                let x = quantize::<_, BLOCK, BLOCK>((pool, tier), x, (rows, columns), into);
                match self.data {
                    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
                    Data::Q8 { .. } if tier == Tier::Amx && rows >= ByteRuns::MIN_ROWS => {
                        Input::ByteRuns(ByteRuns::new(pool, x, rows, (run_values, run_scales)))
                    }
                    _ => Input::Quantized(x),
                }
            }
            Format::Q4K | Format::Q5K | Format::Iq4Xs => {
                const SUMMED: usize = kquants::Q4::SUMMED;
                let into = (values, scales, wide_sums);
                Input::Wide(quantize::<_, WIDE, SUMMED>((pool, tier), x, (rows, columns), into))
            }
            Format::Q2K | Format::Q3K | Format::Q6K => {
                const SUMMED: usize = kquants::Q6::SUMMED;
                let into = (values, scales, wide_sums);
                Input::Wide(quantize::<_, WIDE, SUMMED>((pool, tier), x, (rows, columns), into))
            }
        };
        let Output { out, stride, first, epilogue } = output;
        let gated = epilogue == Epilogue::Gate;
        let written = if gated { self.tiles().div_ceil(2) } else { self.tiles() } * LANES;
        assert!(first + written <= stride || rows < 2, "rows of the output do not overlap");
        let tiles_at_once = self.tiles_at_once(rows, pool.threads(), if gated { 2 } else { 1 });
        let out = DisjointSlice::new(out);
        pool.run(self.tiles().div_ceil(tiles_at_once), &|part| {
            let tiles = part * tiles_at_once..((part + 1) * tiles_at_once).min(self.tiles());
            let store = Part { out: &out, stride, first, epilogue };
            Multiply { matrix: self, tiles, input, rows, store }.run(tier);
        });
    }
}

/// Quantizes rows to blocks of `N`, with the sum of each `SUMMED` values.
fn quantize<'a, T: Sum, const N: usize, const SUMMED: usize>(
    (pool, tier): (&mut ThreadPool, Tier),
    x: Activations<'_>,
    (rows, columns): (usize, usize),
    (values, scales, sums): (&'a mut Vec<i8>, &'a mut Vec<f32>, &'a mut Vec<T>),
) -> Quantized<'a, T> {
    let (blocks, summed) = (columns / N, columns / SUMMED);
    let values = room(values, rows * columns);
    let (scales, sums) = (room(scales, rows * blocks), room(sums, rows * summed));
    let parts = (DisjointSlice::new(values), DisjointSlice::new(scales), DisjointSlice::new(sums));
    pool.run(rows, &|row| {
        // SAFETY: in all three buffers, each row belongs to a single part of the job.
        let (values, scales, sums) = unsafe {
            let (values, scales, sums) = &parts;
            let values = values.part(row * columns, columns);
            (values, scales.part(row * blocks, blocks), sums.part(row * summed, summed))
        };
        let x = &x.numbers[row * x.stride..][..columns];
        tier.run(InBlocks::<T, N, SUMMED> { x, values, scales, sums });
    });
    Quantized { columns, values, scales, sums }
}

/// Rounds rows to bf16, in the order in which [`Pairs`](super::operands::Pairs) reads them.
fn in_pairs<'a>(
    (pool, tier): (&mut ThreadPool, Tier),
    x: Activations<'_>,
    (rows, columns): (usize, usize),
    pairs: &'a mut Vec<u32>,
) -> &'a [u32] {
    let width = columns / 2;
    let pairs = room(pairs, rows * width);
    let parts = DisjointSlice::new(pairs);
    pool.run(groups(rows, MAX_ROWS).len(), &|group| {
        if let Some(group) = groups(rows, MAX_ROWS).nth(group) {
            // SAFETY: each group of rows belongs to a single part of the job.
            let out = unsafe { parts.part(group.start * width, group.len() * width) };
            let numbers = &x.numbers[group.start * x.stride..];
            tier.run(InPairs { x: numbers, stride: x.stride, rows: group.len(), out });
        }
    });
    pairs
}

/// Rounds rows to bf16, in the order in which [`PairBlocks`](super::pair_blocks::PairBlocks)
/// reads them.
fn in_pair_blocks<'a>(
    (pool, tier): (&mut ThreadPool, Tier),
    x: Activations<'_>,
    (rows, columns): (usize, usize),
    segments: usize,
    pairs: &'a mut Vec<u32>,
) -> &'a [u32] {
    let (runs, width) = (Runs::of(rows), columns / 2);
    let of_run = runs.rows * width;
    let pairs = room(pairs, runs.count * of_run);
    let parts = DisjointSlice::new(pairs);
    pool.run(runs.count, &|run| {
        // SAFETY: each run of rows belongs to a single part of the job.
        let out = unsafe { parts.part(run * of_run, of_run) };
        let (x, stride) = (&x.numbers[runs.first(run) * x.stride..], x.stride);
        tier.run(InPairBlocks { x, stride, rows: runs.rows, segment: width / segments, out });
    });
    pairs
}

/// One thread's part of an output.
pub(super) struct Part<'a> {
    pub(super) out: &'a DisjointSlice<'a, f32>,
    pub(super) stride: usize,
    pub(super) first: usize,
    pub(super) epilogue: Epilogue,
}

impl Store for Part<'_> {
    #[inline(always)]
    fn store(&mut self, row: usize, tile: usize, lanes: &Lanes) {
        let gated = matches!(self.epilogue, Epilogue::Gate);
        let place = if gated { tile / 2 } else { tile };
        // SAFETY: each tile, or each pair of tiles with one output, belongs to a single part of the
        // job, and rows do not overlap.
        let out = unsafe { self.out.part(row * self.stride + self.first + place * LANES, LANES) };
        match self.epilogue {
            Epilogue::Gate if tile % 2 == 1 => swiglu(out, lanes),
            Epilogue::Set | Epilogue::Gate => out.copy_from_slice(lanes),
        }
    }
}
