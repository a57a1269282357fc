//! Decode step of a Llama model of random weights, as the engine's `network/step.rs` runs it for
//! one row, without the parts that no other thread sees: embedding, cache writes and sampling.

use anyhow::Result;
use nsbridge_kernels::attention::{Attend, PAGE, Pages};
use nsbridge_kernels::matrix::{
    Activations, Epilogue, Matrix, Output, QuantizationBuffers, Source, segments,
};
use nsbridge_kernels::row::{Norm, Rotate};
use nsbridge_kernels::{Format, ThreadPool, Tier};

use crate::THREADS;

/// Number of tokens that the token of the step attends to, itself included.
const POSITIONS: usize = 128;

/// Number of different rows of a matrix.
const ROWS: usize = 64;

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) layers: usize,
    pub(crate) vocabulary: usize,
}

impl Shape {
    fn dim(self) -> usize {
        self.hidden / self.heads
    }
}

struct Layer {
    qkv: Matrix,
    attention: Matrix,
    gate_up: Matrix,
    down: Matrix,
    /// Keys and values, `[kv_heads, pages, dim, PAGE]` each.
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// Model with the buffers of a step.
pub(crate) struct Decode {
    shape: Shape,
    tier: Tier,
    layers: Vec<Layer>,
    output: Matrix,
    ones: Vec<f32>,
    turns: Vec<f32>,
    buffers: QuantizationBuffers,
    stream: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    wide: Vec<f32>,
    sums: Vec<f32>,
    logits: Vec<f32>,
}

impl Decode {
    pub(crate) fn new(shape: Shape, format: Format) -> Result<Self> {
        let Shape { hidden, inner, kv_heads, layers, vocabulary, .. } = shape;
        let (dim, tier) = (shape.dim(), Tier::best());
        let mut pool = ThreadPool::new(THREADS);
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut matrix = |rows, columns| matrix(&mut pool, &mut random, format, rows, columns);
        let cached = kv_heads * dim * POSITIONS.next_multiple_of(PAGE);
        let numbers =
            |seed: usize| (0..cached).map(move |at| ((at * 7 + seed) % 19) as f32 * 0.1 - 0.9);
        let layer = |matrix: &mut dyn FnMut(usize, usize) -> Result<Matrix>, at| {
            Ok(Layer {
                qkv: matrix(hidden + 2 * kv_heads * dim, hidden)?,
                attention: matrix(hidden, hidden)?,
                gate_up: matrix(2 * inner, hidden)?,
                down: matrix(hidden, inner)?,
                keys: numbers(at).collect(),
                values: numbers(at + 5).collect(),
            })
        };
        let layers: Result<Vec<_>> = (0..layers).map(|at| layer(&mut matrix, at)).collect();
        Ok(Self {
            shape,
            tier,
            layers: layers?,
            output: matrix(vocabulary, hidden)?,
            ones: vec![1.0; hidden],
            turns: vec![std::f32::consts::FRAC_1_SQRT_2; dim / 2],
            buffers: QuantizationBuffers::default(),
            stream: vec![0.0; hidden],
            normed: vec![0.0; hidden],
            qkv: vec![0.0; hidden + 2 * kv_heads * dim],
            attended: vec![0.0; hidden],
            wide: vec![0.0; inner],
            sums: vec![0.0; hidden],
            logits: vec![0.0; vocabulary],
        })
    }

    /// Returns the number of jobs of a step that have more than one part.
    pub(crate) fn sections(&self) -> usize {
        5 * self.layers.len() + 1
    }

    /// Returns the logits of the last step.
    pub(crate) fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Computes the logits of a token from the same residual stream each time.
    pub(crate) fn step(&mut self, pool: &mut ThreadPool) {
        let Self { shape, tier, ones, turns, buffers, .. } = self;
        let Self { stream, normed, qkv, attended, wide, sums, logits, .. } = self;
        let (tier, dim) = (*tier, shape.dim());
        let group = shape.hidden / shape.kv_heads;
        let table: [u32; POSITIONS / PAGE] = std::array::from_fn(|page| page as u32);
        for (at, number) in stream.iter_mut().enumerate() {
            *number = (at % 11) as f32 * 0.1 - 0.5;
        }
        for layer in &self.layers {
            normalize(tier, ones, stream, normed);
            multiply((pool, tier), &layer.qkv, normed, buffers, Output::new(qkv, qkv_len(shape)));
            for head in qkv.chunks_exact_mut(dim).take(shape.heads + shape.kv_heads) {
                tier.run(Rotate { head, cos: turns, sin: turns });
            }
            let queries = &*qkv;
            pool.for_each_chunk(attended, group, |head, out| {
                let size = dim * PAGE;
                let pages = |data| Pages { data, stride: size, size, table: &table };
                let cached = head * size * table.len()..(head + 1) * size * table.len();
                tier.run(Attend {
                    queries: &queries[head * group..][..group],
                    dim,
                    scale: 1.0 / (dim as f32).sqrt(),
                    first: 0,
                    last: POSITIONS - 1,
                    keys: pages(&layer.keys[cached.clone()]),
                    values: pages(&layer.values[cached]),
                    out,
                });
            });
            let out = Output::new(sums, shape.hidden);
            multiply((pool, tier), &layer.attention, attended, buffers, out);
            add(stream, sums);
            normalize(tier, ones, stream, normed);
            let out = Output::new(wide, shape.inner).epilogue(Epilogue::Gate);
            multiply((pool, tier), &layer.gate_up, normed, buffers, out);
            let out = Output::new(sums, shape.hidden);
            multiply((pool, tier), &layer.down, wide, buffers, out);
            add(stream, sums);
        }
        normalize(tier, ones, stream, normed);
        let out = Output::new(logits, shape.vocabulary);
        multiply((pool, tier), &self.output, normed, buffers, out);
    }
}

fn qkv_len(shape: &Shape) -> usize {
    shape.hidden + 2 * shape.kv_heads * shape.dim()
}

fn normalize(tier: Tier, weight: &[f32], x: &[f32], out: &mut [f32]) {
    tier.run(Norm { x, weight, eps: 1e-5, out });
}

fn add(stream: &mut [f32], sums: &[f32]) {
    stream.iter_mut().zip(sums).for_each(|(stream, sum)| *stream += sum);
}

fn multiply(
    compute: (&mut ThreadPool, Tier),
    matrix: &Matrix,
    numbers: &[f32],
    buffers: &mut QuantizationBuffers,
    output: Output<'_>,
) {
    let x = Activations { numbers, stride: matrix.columns() };
    matrix.multiply(compute, x, 1, buffers, output);
}

/// Creates a matrix of small random weights, whose rows repeat.
fn matrix(
    pool: &mut ThreadPool,
    random: &mut Random,
    format: Format,
    rows: usize,
    columns: usize,
) -> Result<Matrix> {
    let weights = (0..ROWS * columns).map(|_| random.next() / (columns as f32).sqrt());
    let bytes: Vec<u8> = weights.flat_map(f32::to_le_bytes).collect();
    let source = Source { name: "random", format: Format::F32, bytes: &bytes };
    let mut matrix = Matrix::zeroed(format, rows, columns, segments(format, columns))?;
    let place = |row| (row < rows).then_some((0, row % ROWS));
    matrix.pack((pool, Tier::best()), &[source], place)?;
    Ok(matrix)
}

/// Xorshift generator (Marsaglia, 2003).
struct Random(u64);

impl Random {
    /// Returns a number from -1 to 1.
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
