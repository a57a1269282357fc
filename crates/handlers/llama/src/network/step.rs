//! One step on a CPU rank: rows in, logits out.

use nsbridge_kernels::attention::{Attention, PAGE, Token};
use nsbridge_kernels::collectives::{Communicator, RankLost};
use nsbridge_kernels::matrix::{Activations, Epilogue, Matrix, Output};
use nsbridge_kernels::rowwise::{Norm, Rotate};
use nsbridge_kernels::simd::LANES;
use nsbridge_kernels::{Element, ThreadPool};

use super::part::{Heads, Layer, Partial};
use super::plan::Step;
use super::rank::{Rank, Rows};
use super::shard::{Kv, Scratch, Shard};
use crate::kv::{Shape, Store, Values};
use crate::rope::RopeTable;
use nsbridge_kernels::Tier;

/// Largest supported head dimension, since threads keep a head's numbers on the stack.
pub(crate) const WIDEST_HEAD: usize = 512;

impl Rank for Shard {
    fn run(&mut self, step: &Step) -> Result<(), RankLost> {
        let Self {
            embedding,
            tokens,
            layers,
            norm,
            output,
            hidden,
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
        let by_table = step.by_table();
        let mut run = Run { step, tokens: &by_table, tier: *tier, pool, scratch, eps, comm };
        run.embed(embedding, tokens.first)?;
        for (index, layer) in layers.iter().enumerate() {
            run.attend(index, layer, *heads, rope, kv)?;
            run.feed_forward(layer)?;
        }
        run.keep_wanted(norm.len());
        if *hidden {
            run.hidden(norm);
            return Ok(());
        }
        run.logits(norm, output.as_ref().unwrap_or(embedding), tokens.each)
    }

    fn logits(&self, step: &Step) -> Rows<'_> {
        let Scratch { logits, gathered, .. } = &self.scratch;
        // The hidden states are the same on all ranks.
        let (all, stride) = match (self.hidden, self.comm.ranks()) {
            (true, _) => (logits, self.norm.len()),
            (false, 1) => (logits, self.tokens.each),
            (false, ranks) => (gathered, self.tokens.each * ranks),
        };
        Rows { numbers: &all[..step.wanted.len() * stride], stride }
    }

    fn arithmetic(&self) -> String {
        self.formats()
    }
}

/// State of a step in progress.
struct Run<'a> {
    step: &'a Step,
    /// Tokens of the step, in the order in which they attend.
    tokens: &'a [Token<'a>],
    tier: Tier,
    pool: &'a mut ThreadPool,
    scratch: &'a mut Scratch,
    eps: f32,
    comm: &'a mut dyn Communicator,
}

impl Run<'_> {
    /// Computes the embeddings: each token's row is on one rank, and the other ranks add zeros in
    /// the all-reduce.
    fn embed(&mut self, embedding: &Matrix, first_token: usize) -> Result<(), RankLost> {
        let stride = embedding.columns().next_multiple_of(LANES);
        let Scratch { stream, .. } = &mut *self.scratch;
        let len = self.step.tokens.len() * stride;
        let own = first_token..first_token + embedding.rows();
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
    ) -> Result<(), RankLost> {
        let (count, step) = (self.step.rows.len(), self.step);
        self.norm(&layer.attention_norm, count);
        // The padding rows of a matrix's last tile are overwritten by the next matrix.
        let (mut first, mut stride) = (0, 0);
        for matrix in &layer.qkv {
            stride = first + matrix.padded();
            first += matrix.rows();
        }
        room(&mut self.scratch.qkv, count * stride);
        let Scratch { normed, qkv, blocks, attended, partials, .. } = &mut *self.scratch;
        first = 0;
        for matrix in &layer.qkv {
            let x = Activations { numbers: normed, stride: matrix.columns() };
            let output = Output::new(qkv, stride).at(first);
            matrix.multiply((self.pool, self.tier), x, count, blocks, output);
            first += matrix.rows();
        }

        let (tier, eps) = (self.tier, self.eps);
        self.pool.for_each_chunk(&mut qkv[..count * stride], stride, |row, numbers| {
            let (cos, sin) = rope.at(step.rows[row].position);
            let turned = heads.queries + heads.keys;
            for (head, x) in numbers.chunks_exact_mut(heads.dim).take(turned).enumerate() {
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
        let attended = room(attended, count * width);
        let asked =
            Asked { queries: qkv, stride, heads, window: layer.window, tokens: self.tokens };
        let (pool, place) = ((&mut *self.pool, tier), (*shape, index));
        match values {
            Values::F32(data) => see(pool, &asked, data, place, partials, attended),
            Values::Bf16(data) => see(pool, &asked, data, place, partials, attended),
        }
        self.add(&layer.output, count, |scratch| &mut scratch.attended, width)
    }

    /// Computes `stream += down(silu(gate(x)) * up(x))` with `x = norm(stream)`.
    fn feed_forward(&mut self, layer: &Layer) -> Result<(), RankLost> {
        let count = self.step.rows.len();
        self.norm(&layer.feed_forward_norm, count);
        let stride = layer.gate_up.padded() / 2;
        let Scratch { normed, wide, blocks, .. } = &mut *self.scratch;
        room(wide, count * stride);
        let x = Activations { numbers: normed, stride: layer.gate_up.columns() };
        let output = Output::new(wide, stride).epilogue(Epilogue::Gate);
        layer.gate_up.multiply((self.pool, self.tier), x, count, blocks, output);
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
    ) -> Result<(), RankLost> {
        let numbers = std::mem::take(input(self.scratch));
        let width = matrix.padded();
        let Scratch { stream, sums, blocks, .. } = &mut *self.scratch;
        let x = Activations { numbers: &numbers, stride };
        let out = room(sums, count * width);
        let output = Output::new(out, width);
        matrix.multiply((self.pool, self.tier), x, count, blocks, output);
        self.comm.all_reduce(sums, count * width)?;
        self.pool.for_each_chunk(&mut stream[..count * width], width, |row, stream| {
            let (stream, sums) = (&mut stream[..matrix.rows()], &sums[row * width..]);
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
        let (tier, eps) = (self.tier, self.eps);
        self.pool.for_each_chunk(room(normed, count * width), width, |row, out| {
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

    /// Computes the norms of the wanted rows, as the results of the step.
    fn hidden(&mut self, norm: &[f32]) {
        let count = self.step.wanted.len();
        self.norm(norm, count);
        let Scratch { normed, logits, .. } = &mut *self.scratch;
        room(logits, count * norm.len()).copy_from_slice(&normed[..count * norm.len()]);
    }

    fn logits(&mut self, norm: &[f32], output: &Matrix, stride: usize) -> Result<(), RankLost> {
        let count = self.step.wanted.len();
        self.norm(norm, count);
        let Scratch { normed, logits, gathered, blocks, .. } = &mut *self.scratch;
        room(logits, count * stride);
        let x = Activations { numbers: normed, stride: output.columns() };
        output.multiply((self.pool, self.tier), x, count, blocks, Output::new(logits, stride));
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

/// Queries of a layer, and the tokens that they belong to.
struct Asked<'a> {
    queries: &'a [f32],
    /// Distance from the queries of one row to those of the next.
    stride: usize,
    heads: Heads,
    window: Option<usize>,
    tokens: &'a [Token<'a>],
}

/// Computes the attention of a layer over its keys and values.
fn see<E: Element>(
    pool: (&mut ThreadPool, Tier),
    asked: &Asked<'_>,
    data: &Store<E>,
    (shape, layer): (Shape, usize),
    partials: &mut Vec<f32>,
    out: &mut [f32],
) {
    let Asked { queries, stride, heads, window, tokens } = *asked;
    let [keys, values] = data.pages(shape, layer);
    let (group, dim) = (heads.queries / heads.keys, heads.dim);
    let scale = (1.0 / (dim as f64).sqrt()) as f32;
    let heads = heads.keys;
    let attention =
        Attention { queries, stride, heads, group, dim, scale, window, tokens, keys, values };
    attention.run(pool, partials, out);
}

/// Returns the first `len` numbers of a buffer, which grows if needed.
fn room<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}
