//! One step on a CPU rank: rows in, logits out.

#![expect(unsafe_code, reason = "threads write to parts of a buffer that do not overlap")]

use std::ops::Range;

use super::plan::{Row, Step};
use super::ranks::{Rank, Rows};
use super::shard::{Heads, Kv, Layer, Partial, Shard};
use crate::RopeTable;
use crate::comm::{Comm, Lost};
use crate::kernel::attention::{Attend, PAGE};
use crate::kernel::kquants::{self, Block as _};
use crate::kernel::row::{BLOCK, InBlocks, Norm, Rotate, Sum, swiglu};
use crate::kernel::tile::{self, Input, Multiply, Quantised};
use crate::kernel::{LANES, Lanes, Tier};
use crate::kv::{Element, Shape, Store, Values};
use crate::matrix::{Format, Matrix};
use crate::pool::Pool;
use crate::share::Disjoint;

/// Largest supported head dimension, since threads keep a head's numbers on the stack.
pub(crate) const WIDEST_HEAD: usize = 512;

/// Buffers reused across steps; each is as long as the largest step so far needed.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Residual stream.
    stream: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    wide: Vec<f32>,
    /// Sums added to the residual stream.
    sums: Vec<f32>,
    logits: Vec<f32>,
    /// On rank 0, the logits of all ranks.
    gathered: Vec<f32>,
    blocks: Blocks,
}

/// Quantized activations, as made by [`InBlocks`].
#[derive(Debug, Default)]
struct Blocks {
    values: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    wide_sums: Vec<i16>,
}

impl Rank for Shard {
    fn run(&mut self, step: &Step) -> Result<(), Lost> {
        let Self {
            embedding,
            tokens,
            layers,
            norm,
            output,
            rope,
            eps,
            heads,
            kv,
            tier,
            pool,
            scratch,
            comm,
        } = self;
        for (from, to) in &step.copies {
            kv.values.copy(kv.shape, *from, *to);
        }
        let (comm, eps) = (&mut **comm, *eps);
        let mut run = Run { step, tier: *tier, pool, scratch, eps, comm };
        run.embed(embedding, tokens.first)?;
        for (index, layer) in layers.iter().enumerate() {
            run.attend(index, layer, *heads, rope, kv)?;
            run.feed_forward(layer)?;
        }
        run.keep_wanted(norm.len());
        run.logits(norm, output.as_ref().unwrap_or(embedding), tokens.each)
    }

    fn logits(&self, step: &Step) -> Rows<'_> {
        let stride = self.tokens.each * self.comm.ranks();
        let Scratch { logits, gathered, .. } = &self.scratch;
        let all = if self.comm.ranks() == 1 { logits } else { gathered };
        Rows { numbers: &all[..step.wanted.len() * stride], stride }
    }

    fn arithmetic(&self) -> String {
        self.formats()
    }
}

/// State of a step in progress.
struct Run<'a> {
    step: &'a Step,
    tier: Tier,
    pool: &'a mut Pool,
    scratch: &'a mut Scratch,
    eps: f32,
    comm: &'a mut dyn Comm,
}

impl Run<'_> {
    /// Computes the embeddings: each token's row is on one rank, and the other ranks add zeros in
    /// the all-reduce.
    fn embed(&mut self, embedding: &Matrix, first_token: usize) -> Result<(), Lost> {
        let stride = embedding.columns.next_multiple_of(LANES);
        let Scratch { stream, .. } = &mut *self.scratch;
        let len = self.step.tokens.len() * stride;
        let own = first_token..first_token + embedding.rows;
        for (token, out) in self.step.tokens.iter().zip(room(stream, len).chunks_mut(stride)) {
            match *token as usize {
                token if own.contains(&token) => embedding.row(token - first_token, out),
                _ => out.fill(0.0),
            }
        }
        self.comm.all_reduce(stream, len)
    }

    /// Computes `stream += output(attention(norm(stream)))`.
    fn attend(
        &mut self,
        index: usize,
        layer: &Layer,
        heads: Heads,
        rope: &RopeTable,
        Kv { shape, values }: &mut Kv,
    ) -> Result<(), Lost> {
        let (count, step) = (self.step.rows.len(), self.step);
        self.norm(&layer.attention_norm, count);
        // The padding rows of a matrix's last tile are overwritten by the next matrix.
        let (mut first, mut stride) = (0, 0);
        for matrix in &layer.qkv {
            stride = first + matrix.padded();
            first += matrix.rows;
        }
        room(&mut self.scratch.qkv, count * stride);
        let Scratch { normed, qkv, blocks, attended, .. } = &mut *self.scratch;
        first = 0;
        for matrix in &layer.qkv {
            let x = Activations { numbers: normed, stride: matrix.columns };
            let output = Output { out: qkv, stride, first, then: Then::Set };
            multiply(self.tier, self.pool, matrix, Prepared { x, blocks }, count, output);
            first += matrix.rows;
        }

        let (tier, eps) = (self.tier, self.eps);
        let shared = Disjoint::new(qkv);
        self.pool.run(count, &|row| {
            // SAFETY: each row belongs to a single part of the job.
            let row_of = unsafe { shared.part(row * stride, stride) };
            let (cos, sin) = rope.at(step.rows[row].position);
            let turned = heads.queries + heads.keys;
            for (head, x) in row_of.chunks_exact_mut(heads.dim).take(turned).enumerate() {
                if let Some((queries, keys)) = &layer.head_norms {
                    let weight = if head < heads.queries { queries } else { keys };
                    let mut normed = [0.0; WIDEST_HEAD];
                    let out = &mut normed[..heads.dim];
                    tier.run(Norm { x, weight, eps, out });
                    x.copy_from_slice(out);
                }
                tier.run(Rotate { head: x, cos, sin });
            }
        });
        for (row, x) in step.rows.iter().zip(qkv.chunks_exact(stride)) {
            let place = (step.tables[row.chunk][row.position / PAGE], row.position);
            write(values, *shape, index, heads, place, x);
        }

        let width = heads.queries * heads.dim;
        let out = Disjoint::new(room(attended, count * width));
        let group = heads.queries / heads.keys * heads.dim;
        let (shape, values) = (*shape, &*values);
        self.pool.run(count * heads.keys, &|part| {
            let (row, head) = (part / heads.keys, part % heads.keys);
            let queries = &qkv[row * stride + head * group..][..group];
            // SAFETY: the queries of each row and key head belong to a single part of the job.
            let out = unsafe { out.part(row * width + head * group, group) };
            let Row { chunk, position } = step.rows[row];
            let seen = layer.window.map_or(0, |window| (position + 1).saturating_sub(window));
            let table = &step.tables[chunk];
            let place = Place { layer: index, head, table, seen: seen..position + 1 };
            match values {
                Values::F32(data) => see(tier, shape, data, &place, queries, out),
                Values::Bf16(data) => see(tier, shape, data, &place, queries, out),
            }
        });
        self.add(&layer.output, count, |scratch| &mut scratch.attended, width)
    }

    /// Computes `stream += down(silu(gate(x)) * up(x))` with `x = norm(stream)`.
    fn feed_forward(&mut self, layer: &Layer) -> Result<(), Lost> {
        let count = self.step.rows.len();
        self.norm(&layer.feed_forward_norm, count);
        let stride = layer.gate_up.padded() / 2;
        let Scratch { normed, wide, blocks, .. } = &mut *self.scratch;
        room(wide, count * stride);
        let x = Activations { numbers: normed, stride: layer.gate_up.columns };
        let output = Output { out: wide, stride, first: 0, then: Then::Gate };
        let input = Prepared { x, blocks };
        multiply(self.tier, self.pool, &layer.gate_up, input, count, output);
        self.add(&layer.down, count, |scratch| &mut scratch.wide, stride)
    }

    /// Adds the all-reduced product of a matrix, of which each rank has columns, to the residual
    /// stream.
    fn add(
        &mut self,
        Partial { matrix, bias }: &Partial,
        count: usize,
        input: impl Fn(&mut Scratch) -> &mut Vec<f32>,
        stride: usize,
    ) -> Result<(), Lost> {
        let numbers = std::mem::take(input(self.scratch));
        let width = matrix.padded();
        let Scratch { stream, sums, blocks, .. } = &mut *self.scratch;
        let x = Activations { numbers: &numbers, stride };
        let out = room(sums, count * width);
        let output = Output { out, stride: width, first: 0, then: Then::Set };
        multiply(self.tier, self.pool, matrix, Prepared { x, blocks }, count, output);
        self.comm.all_reduce(sums, count * width)?;
        let shared = Disjoint::new(stream);
        self.pool.run(count, &|row| {
            // SAFETY: each row belongs to a single part of the job.
            let stream = unsafe { shared.part(row * width, matrix.rows) };
            let sums = &sums[row * width..][..matrix.rows];
            match bias {
                None => stream.iter_mut().zip(sums).for_each(|(stream, sum)| *stream += sum),
                Some(bias) => {
                    for ((stream, sum), bias) in stream.iter_mut().zip(sums).zip(bias) {
                        *stream += sum + bias;
                    }
                }
            }
        });
        *input(self.scratch) = numbers;
        Ok(())
    }

    /// Computes the norms of the first `count` rows of the residual stream.
    fn norm(&mut self, weight: &[f32], count: usize) {
        let width = weight.len();
        let stride = width.next_multiple_of(LANES);
        let Scratch { stream, normed, .. } = &mut *self.scratch;
        let out = Disjoint::new(room(normed, count * width));
        let (tier, eps) = (self.tier, self.eps);
        self.pool.run(count, &|row| {
            // SAFETY: each row belongs to a single part of the job.
            let out = unsafe { out.part(row * width, width) };
            tier.run(Norm { x: &stream[row * stride..][..width], weight, eps, out });
        });
    }

    /// Moves the rows that need logits to the front.
    fn keep_wanted(&mut self, width: usize) {
        let stride = width.next_multiple_of(LANES);
        for (to, row) in self.step.wanted.iter().enumerate() {
            self.scratch.stream.copy_within(row * stride..(row + 1) * stride, to * stride);
        }
    }

    fn logits(&mut self, norm: &[f32], output: &Matrix, stride: usize) -> Result<(), Lost> {
        let count = self.step.wanted.len();
        self.norm(norm, count);
        let Scratch { normed, logits, gathered, blocks, .. } = &mut *self.scratch;
        room(logits, count * stride);
        let x = Activations { numbers: normed, stride: output.columns };
        let out = Output { out: logits, stride, first: 0, then: Then::Set };
        multiply(self.tier, self.pool, output, Prepared { x, blocks }, count, out);
        let ranks = self.comm.ranks();
        if ranks == 1 {
            return Ok(());
        }
        let all = ranks * stride;
        self.comm.gather(logits, count * stride, &mut |rank, logits| {
            let rows = room(gathered, count * all).chunks_exact_mut(all);
            for (row, logits) in rows.zip(logits.chunks_exact(stride)) {
                row[rank * stride..][..stride].copy_from_slice(logits);
            }
        })
    }
}

/// Rows of activations.
#[derive(Clone, Copy)]
struct Activations<'a> {
    numbers: &'a [f32],
    /// Distance from one row to the next; the first `columns` numbers of a row are used.
    stride: usize,
}

/// Activations, with buffers for their quantized form.
struct Prepared<'a> {
    x: Activations<'a>,
    blocks: &'a mut Blocks,
}

/// Epilogue of a product.
#[derive(Clone, Copy)]
enum Then {
    /// Writes the product.
    Set,
    /// Combines alternating gate and up tiles: `silu(gate) * up`.
    Gate,
}

/// Destination of a product.
struct Output<'a> {
    out: &'a mut [f32],
    stride: usize,
    /// Offset within a row.
    first: usize,
    then: Then,
}

/// Multiplies all tiles with all rows, on all threads.
fn multiply(
    tier: Tier,
    pool: &mut Pool,
    matrix: &Matrix,
    Prepared { x, blocks }: Prepared<'_>,
    rows: usize,
    output: Output<'_>,
) {
    let columns = matrix.columns;
    const WIDE: usize = kquants::BLOCK;
    let Blocks { values, scales, sums, wide_sums } = blocks;
    let input = match matrix.format() {
        Format::F32 | Format::Bf16 | Format::F16 => Input::Float { x: x.numbers, stride: x.stride },
        Format::Q8_0 => {
            let into = (values, scales, sums);
            Input::Quantised(quantise::<_, BLOCK, BLOCK>((tier, pool), x, (rows, columns), into))
        }
        Format::Q4K | Format::Q5K => {
            const SUMMED: usize = kquants::Q4::SUMMED;
            let into = (values, scales, wide_sums);
            Input::Wide(quantise::<_, WIDE, SUMMED>((tier, pool), x, (rows, columns), into))
        }
        Format::Q6K => {
            const SUMMED: usize = kquants::Q6::SUMMED;
            let into = (values, scales, wide_sums);
            Input::Wide(quantise::<_, WIDE, SUMMED>((tier, pool), x, (rows, columns), into))
        }
    };
    let Output { out, stride, first, then } = output;
    let pieces =
        matrix.pieces(rows, pool.threads(), if matches!(then, Then::Gate) { 2 } else { 1 });
    let out = Disjoint::new(out);
    pool.run(matrix.tiles().div_ceil(pieces), &|piece| {
        let tiles = piece * pieces..((piece + 1) * pieces).min(matrix.tiles());
        let store = Part { out: &out, stride, first, then };
        tier.run(Multiply { matrix, tiles, input, rows, store });
    });
}

/// Quantizes rows to blocks of `N`, with the sum of each `SUMMED` values.
fn quantise<'a, T: Sum, const N: usize, const SUMMED: usize>(
    (tier, pool): (Tier, &mut Pool),
    x: Activations<'_>,
    (rows, columns): (usize, usize),
    (values, scales, sums): (&'a mut Vec<i8>, &'a mut Vec<f32>, &'a mut Vec<T>),
) -> Quantised<'a, T> {
    let (blocks, summed) = (columns / N, columns / SUMMED);
    let values = room(values, rows * columns);
    let (scales, sums) = (room(scales, rows * blocks), room(sums, rows * summed));
    let parts = (Disjoint::new(values), Disjoint::new(scales), Disjoint::new(sums));
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
    Quantised { columns, values, scales, sums }
}

/// One thread's part of an output.
struct Part<'a> {
    out: &'a Disjoint<'a, f32>,
    stride: usize,
    first: usize,
    then: Then,
}

impl tile::Store for Part<'_> {
    #[inline(always)]
    fn store(&mut self, row: usize, tile: usize, lanes: &Lanes) {
        let place = if matches!(self.then, Then::Gate) { tile / 2 } else { tile };
        // SAFETY: each tile, or each pair of tiles with one output, belongs to a single part of the
        // job.
        let out = unsafe { self.out.part(row * self.stride + self.first + place * LANES, LANES) };
        match self.then {
            Then::Gate if tile % 2 == 1 => swiglu(out, lanes),
            Then::Set | Then::Gate => out.copy_from_slice(lanes),
        }
    }
}

/// Writes the keys and values of a row to a position of a block.
fn write(
    values: &mut Values,
    shape: Shape,
    layer: usize,
    heads: Heads,
    place: (u32, usize),
    x: &[f32],
) {
    let (queries, keys) = (heads.queries * heads.dim, heads.keys * heads.dim);
    for head in 0..heads.keys {
        let key = &x[queries + head * heads.dim..][..heads.dim];
        let value = &x[queries + keys + head * heads.dim..][..heads.dim];
        match values {
            Values::F32(data) => data.write(shape, (layer, head), place, key, value),
            Values::Bf16(data) => data.write(shape, (layer, head), place, key, value),
        }
    }
}

/// Keys and values that a row's query heads attend to.
struct Place<'a> {
    layer: usize,
    head: usize,
    table: &'a [u32],
    seen: Range<usize>,
}

fn see<E: Element>(
    tier: Tier,
    shape: Shape,
    data: &Store<E>,
    place: &Place<'_>,
    queries: &[f32],
    out: &mut [f32],
) {
    let pages = |data| Store::pages(data, shape, place.layer, place.head, place.table);
    tier.run(Attend {
        queries,
        dim: shape.dim,
        scale: (1.0 / (shape.dim as f64).sqrt()) as f32,
        first: place.seen.start,
        last: place.seen.end - 1,
        keys: pages(&data.keys),
        values: pages(&data.values),
        out,
    });
}

/// Returns the first `len` numbers of a buffer, which grows if needed.
fn room<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}
