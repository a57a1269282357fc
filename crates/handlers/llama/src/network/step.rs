//! One step: rows in, logits out.

#![expect(unsafe_code, reason = "threads write to parts of a buffer that do not overlap")]

use std::ops::Range;

use nsbridge_handler::{Error, Result};

use super::{Chunk, Heads, Layer, Logits, Model};
use crate::kernel::attention::{Attend, PAGE};
use crate::kernel::row::{BLOCK, Norm, Quantise, Rotate, swiglu};
use crate::kernel::tile::{Input, Multiply, Quantised, Store};
use crate::kernel::{LANES, Lanes, Tier};
use crate::kv::{Both, Element, KvCache};
use crate::matrix::{Format, Matrix};
use crate::pool::Pool;
use crate::share::Disjoint;

/// The widest head: what a thread keeps of it is on its stack.
pub(crate) const WIDEST_HEAD: usize = 512;

/// Buffers that are used again; each as long as the largest step so far needed.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The residual stream.
    stream: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    wide: Vec<f32>,
    logits: Vec<f32>,
    blocks: Blocks,
    rows: Vec<Row>,
}

/// Activations in blocks, as [`Quantise`] makes them.
#[derive(Debug, Default)]
struct Blocks {
    values: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

/// A token's place.
#[derive(Clone, Copy, Debug)]
struct Row {
    chunk: usize,
    position: usize,
}

impl Model {
    /// Runs the chunks' tokens, and gives the logits that they want.
    ///
    /// # Errors
    ///
    /// If a chunk has no token, no blocks reserved, or a token that is not in the vocabulary or
    /// beyond the context. Nothing has changed then.
    pub fn forward(&mut self, chunks: &mut [Chunk<'_>]) -> Result<Logits<'_>> {
        for chunk in &*chunks {
            self.check(chunk)?;
        }
        let Self {
            embedding, layers, norm, output, rope, shape, tier, pool, cache, scratch, ..
        } = self;
        let (heads, eps) = (*shape, self.eps);
        let mut run = Run { tier: *tier, pool, scratch, eps };
        run.embed(embedding, chunks);
        for (index, layer) in layers.iter().enumerate() {
            run.attend(index, layer, heads, rope, cache, chunks);
            run.feed_forward(layer);
        }
        let wanted = run.keep_wanted(chunks, embedding.columns);
        let output = output.as_ref().unwrap_or(embedding);
        run.logits(norm, output, wanted);
        for chunk in chunks {
            chunk.table.grow(chunk.tokens.len());
        }
        let stride = output.padded();
        let data = &self.scratch.logits[..wanted * stride];
        Ok(Logits { data, stride, vocab_size: output.rows })
    }

    fn check(&self, chunk: &Chunk<'_>) -> Result<()> {
        let end = chunk.table.len() + chunk.tokens.len();
        let reserved = chunk.table.blocks().len() * PAGE;
        let known = |token: &u32| (*token as usize) < self.vocab_size();
        let wrong = if chunk.tokens.is_empty() || chunk.logits > chunk.tokens.len() {
            "a chunk has fewer tokens than it wants logits of, or none"
        } else if end > self.context {
            "a sequence goes beyond the context"
        } else if end > reserved || !self.cache.may_write(chunk.table) {
            "a chunk has no room in the cache"
        } else if !chunk.tokens.iter().all(known) {
            "a token is not in the vocabulary"
        } else {
            return Ok(());
        };
        Err(Error::bad_input(wrong))
    }
}

/// A step under way.
struct Run<'a> {
    tier: Tier,
    pool: &'a mut Pool,
    scratch: &'a mut Scratch,
    eps: f32,
}

impl Run<'_> {
    fn embed(&mut self, embedding: &Matrix, chunks: &[Chunk<'_>]) {
        let width = embedding.columns;
        let Scratch { stream, rows, .. } = &mut *self.scratch;
        rows.clear();
        for (chunk, Chunk { table, tokens, .. }) in chunks.iter().enumerate() {
            rows.extend((0..tokens.len()).map(|i| Row { chunk, position: table.len() + i }));
        }
        let stride = width.next_multiple_of(LANES);
        let tokens = chunks.iter().flat_map(|chunk| chunk.tokens);
        for (token, out) in tokens.zip(room(stream, rows.len() * stride).chunks_mut(stride)) {
            embedding.row(*token as usize, out);
        }
    }

    /// `stream += output(attention(norm(stream)))`.
    fn attend(
        &mut self,
        index: usize,
        layer: &Layer,
        heads: Heads,
        rope: &crate::RopeTable,
        cache: &mut KvCache,
        chunks: &[Chunk<'_>],
    ) {
        let count = self.scratch.rows.len();
        self.norm(&layer.attention_norm, count);
        let stride = layer.qkv.padded();
        room(&mut self.scratch.qkv, count * stride);
        let Scratch { normed, qkv, blocks, rows, attended, .. } = &mut *self.scratch;
        let x = Activations { numbers: normed, stride: layer.qkv.columns };
        let output = Output { out: qkv, stride, then: Then::Set };
        multiply(self.tier, self.pool, &layer.qkv, Prepared { x, blocks }, count, output);

        let (tier, eps) = (self.tier, self.eps);
        let shared = Disjoint::new(qkv);
        self.pool.run(count, &|row| {
            // SAFETY: each row is one part's.
            let row_of = unsafe { shared.part(row * stride, stride) };
            let (cos, sin) = rope.at(rows[row].position);
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
        for (row, x) in rows.iter().zip(qkv.chunks_exact(stride)) {
            write(cache, index, heads, chunks[row.chunk].table.blocks(), row.position, x);
        }

        let width = heads.queries * heads.dim;
        let out = Disjoint::new(room(attended, count * width));
        let group = heads.queries / heads.keys * heads.dim;
        let cache = &*cache;
        self.pool.run(count * heads.keys, &|part| {
            let (row, head) = (part / heads.keys, part % heads.keys);
            let queries = &qkv[row * stride + head * group..][..group];
            // SAFETY: each row's and key head's queries are one part's.
            let out = unsafe { out.part(row * width + head * group, group) };
            let Row { chunk, position } = rows[row];
            let seen = layer.window.map_or(0, |window| (position + 1).saturating_sub(window));
            let table = chunks[chunk].table.blocks();
            let place = Place { layer: index, head, table, seen: seen..position + 1 };
            match &cache.data {
                Both::F32(data) => see(tier, cache, data, &place, heads.dim, queries, out),
                Both::Bf16(data) => see(tier, cache, data, &place, heads.dim, queries, out),
            }
        });
        self.add(&layer.output, count, |scratch| &mut scratch.attended, width);
    }

    /// `stream += down(silu(gate(x)) * up(x))` with `x = norm(stream)`.
    fn feed_forward(&mut self, layer: &Layer) {
        let count = self.scratch.rows.len();
        self.norm(&layer.feed_forward_norm, count);
        let stride = layer.gate_up.padded() / 2;
        let Scratch { normed, wide, blocks, .. } = &mut *self.scratch;
        room(wide, count * stride);
        let x = Activations { numbers: normed, stride: layer.gate_up.columns };
        let output = Output { out: wide, stride, then: Then::Gate };
        let input = Prepared { x, blocks };
        multiply(self.tier, self.pool, &layer.gate_up, input, count, output);
        self.add(&layer.down, count, |scratch| &mut scratch.wide, stride);
    }

    /// Adds a matrix's product to the residual stream.
    fn add(
        &mut self,
        matrix: &Matrix,
        count: usize,
        input: impl Fn(&mut Scratch) -> &mut Vec<f32>,
        stride: usize,
    ) {
        let numbers = std::mem::take(input(self.scratch));
        let Scratch { stream, blocks, .. } = &mut *self.scratch;
        let x = Activations { numbers: &numbers, stride };
        let output = Output { out: stream, stride: matrix.padded(), then: Then::Add };
        multiply(self.tier, self.pool, matrix, Prepared { x, blocks }, count, output);
        *input(self.scratch) = numbers;
    }

    /// Norms the residual stream's first rows.
    fn norm(&mut self, weight: &[f32], count: usize) {
        let width = weight.len();
        let stride = width.next_multiple_of(LANES);
        let Scratch { stream, normed, .. } = &mut *self.scratch;
        let out = Disjoint::new(room(normed, count * width));
        let (tier, eps) = (self.tier, self.eps);
        self.pool.run(count, &|row| {
            // SAFETY: each row is one part's.
            let out = unsafe { out.part(row * width, width) };
            tier.run(Norm { x: &stream[row * stride..][..width], weight, eps, out });
        });
    }

    /// Moves the rows whose logits are wanted to the front, and counts them.
    fn keep_wanted(&mut self, chunks: &[Chunk<'_>], width: usize) -> usize {
        let stride = width.next_multiple_of(LANES);
        let (mut from, mut to) = (0, 0);
        for chunk in chunks {
            let end = from + chunk.tokens.len();
            for row in end - chunk.logits..end {
                self.scratch.stream.copy_within(row * stride..(row + 1) * stride, to * stride);
                to += 1;
            }
            from = end;
        }
        to
    }

    fn logits(&mut self, norm: &[f32], output: &Matrix, count: usize) {
        self.norm(norm, count);
        let stride = output.padded();
        let Scratch { normed, logits, blocks, .. } = &mut *self.scratch;
        room(logits, count * stride);
        let x = Activations { numbers: normed, stride: output.columns };
        let out = Output { out: logits, stride, then: Then::Set };
        multiply(self.tier, self.pool, output, Prepared { x, blocks }, count, out);
    }
}

/// Rows of activations.
#[derive(Clone, Copy)]
struct Activations<'a> {
    numbers: &'a [f32],
    /// From one row to the next; as many as a matrix has columns count.
    stride: usize,
}

/// Activations, and room for what a format makes of them.
struct Prepared<'a> {
    x: Activations<'a>,
    blocks: &'a mut Blocks,
}

/// What is done with a product.
#[derive(Clone, Copy)]
enum Then {
    /// It is written.
    Set,
    /// It is added to what is there.
    Add,
    /// The tiles come in turn, what gates and what is gated; both make one.
    Gate,
}

/// Where a product goes.
struct Output<'a> {
    out: &'a mut [f32],
    stride: usize,
    then: Then,
}

/// All tiles times all rows, on all threads.
fn multiply(
    tier: Tier,
    pool: &mut Pool,
    matrix: &Matrix,
    Prepared { x, blocks }: Prepared<'_>,
    rows: usize,
    output: Output<'_>,
) {
    let columns = matrix.columns;
    let input = if matrix.format() == Format::Q8_0 {
        Input::Quantised(quantise(tier, pool, x, columns, rows, blocks))
    } else {
        Input::Float { x: x.numbers, stride: x.stride }
    };
    let Output { out, stride, then } = output;
    let pieces = matrix.pieces(if matches!(then, Then::Gate) { 2 } else { 1 });
    let out = Disjoint::new(out);
    pool.run(matrix.tiles().div_ceil(pieces), &|piece| {
        let tiles = piece * pieces..((piece + 1) * pieces).min(matrix.tiles());
        let store = Part { out: &out, stride, then };
        tier.run(Multiply { matrix, tiles, input, rows, store });
    });
}

fn quantise<'a>(
    tier: Tier,
    pool: &mut Pool,
    x: Activations<'_>,
    columns: usize,
    rows: usize,
    Blocks { values, scales, sums }: &'a mut Blocks,
) -> Quantised<'a> {
    let blocks = columns / BLOCK;
    let values = room(values, rows * columns);
    let (scales, sums) = (room(scales, rows * blocks), room(sums, rows * blocks));
    let parts = (Disjoint::new(values), Disjoint::new(scales), Disjoint::new(sums));
    pool.run(rows, &|row| {
        // SAFETY: each row is one part's, in all three.
        let (values, scales, sums) = unsafe {
            let (values, scales, sums) = &parts;
            let values = values.part(row * columns, columns);
            (values, scales.part(row * blocks, blocks), sums.part(row * blocks, blocks))
        };
        let x = &x.numbers[row * x.stride..][..columns];
        tier.run(Quantise { x, values, scales, sums });
    });
    Quantised { columns, values, scales, sums }
}

/// A thread's share of an output.
struct Part<'a> {
    out: &'a Disjoint<'a, f32>,
    stride: usize,
    then: Then,
}

impl Store for Part<'_> {
    #[inline(always)]
    fn store(&mut self, row: usize, tile: usize, lanes: &Lanes) {
        let place = if matches!(self.then, Then::Gate) { tile / 2 } else { tile };
        // SAFETY: each tile, and each pair of tiles that make one, is one part's.
        let out = unsafe { self.out.part(row * self.stride + place * LANES, LANES) };
        match self.then {
            Then::Gate if tile % 2 == 1 => swiglu(out, lanes),
            Then::Set | Then::Gate => out.copy_from_slice(lanes),
            Then::Add => {
                for (out, lane) in out.iter_mut().zip(lanes) {
                    *out += lane;
                }
            }
        }
    }
}

/// Writes a row's keys and values to the cache.
fn write(
    cache: &mut KvCache,
    layer: usize,
    heads: Heads,
    table: &[u32],
    position: usize,
    x: &[f32],
) {
    let shape = cache.shape;
    let place = (table[position / PAGE], position);
    let (queries, keys) = (heads.queries * heads.dim, heads.keys * heads.dim);
    for head in 0..heads.keys {
        let key = &x[queries + head * heads.dim..][..heads.dim];
        let value = &x[queries + keys + head * heads.dim..][..heads.dim];
        match &mut cache.data {
            Both::F32(data) => data.write(shape, (layer, head), place, key, value),
            Both::Bf16(data) => data.write(shape, (layer, head), place, key, value),
        }
    }
}

/// What a row's heads look at.
struct Place<'a> {
    layer: usize,
    head: usize,
    table: &'a [u32],
    seen: Range<usize>,
}

fn see<E: Element>(
    tier: Tier,
    cache: &KvCache,
    data: &crate::kv::Store<E>,
    place: &Place<'_>,
    dim: usize,
    queries: &[f32],
    out: &mut [f32],
) {
    let pages =
        |data| crate::kv::Store::pages(data, cache.shape, place.layer, place.head, place.table);
    tier.run(Attend {
        queries,
        dim,
        scale: (1.0 / (dim as f64).sqrt()) as f32,
        first: place.seen.start,
        last: place.seen.end - 1,
        keys: pages(&data.keys),
        values: pages(&data.values),
        out,
    });
}

/// The first `len` numbers of a buffer that grows when it must.
fn room<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}
