//! One rank's part of the network: which rows, columns and heads, and its layers' matrices.

use std::ops::Range;

use nsbridge_kernels::matrix::Matrix;
use nsbridge_kernels::simd::LANES;

use crate::config::Config;

/// One rank's place in the rank group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) rank: usize,
    pub(super) of: usize,
}

impl Part {
    /// Returns the rank's share of a dimension that is divided equally.
    pub(super) fn share(self, size: usize) -> Range<usize> {
        let share = size / self.of;
        self.rank * share..(self.rank + 1) * share
    }

    /// Returns the key/value heads that the rank's queries use. With fewer heads than ranks,
    /// several ranks have the same one.
    pub(super) fn kv_heads(self, config: &Config) -> Range<usize> {
        let first = self.rank * config.kv_heads / self.of;
        first..first + (config.kv_heads / self.of).max(1)
    }

    /// Returns the rows of the query projection for the rank's heads.
    pub(super) fn queries(self, config: &Config) -> Range<usize> {
        rows_of(self.share(config.heads), config)
    }

    /// Returns the rows of the key projection, and of the value projection, for the rank's heads.
    pub(super) fn keys(self, config: &Config) -> Range<usize> {
        rows_of(self.kv_heads(config), config)
    }

    /// Returns the tokens whose embedding and logits belong to the rank, in whole tiles.
    pub(super) fn tokens(self, vocab_size: usize) -> Tokens {
        let each = vocab_size.div_ceil(self.of).next_multiple_of(LANES);
        Tokens { first: vocab_size.min(self.rank * each), each }
    }
}

fn rows_of(heads: Range<usize>, config: &Config) -> Range<usize> {
    heads.start * config.head_dim..heads.end * config.head_dim
}

/// Range of tokens whose rows belong to one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    pub(super) first: usize,
    /// Number of tokens per rank; the last ranks may have fewer, or none.
    pub(super) each: usize,
}

/// Matrix of a backend.
pub(super) trait Packed {
    /// Returns the name of the format in memory.
    fn format(&self) -> String;
    /// Returns the size in memory, in bytes.
    fn bytes(&self) -> usize;
}

impl Packed for Matrix {
    fn format(&self) -> String {
        format!("{:?}", self.format())
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }
}

#[derive(Debug)]
pub(super) struct Layer<M = Matrix> {
    pub(super) attention_norm: Vec<f32>,
    /// Rows of queries, then of keys, then of values: one matrix where their formats are equal.
    pub(super) qkv: Vec<M>,
    /// Norms of each head's queries and of its keys.
    pub(super) head_norms: Option<(Vec<f32>, Vec<f32>)>,
    pub(super) output: Partial<M>,
    pub(super) window: Option<usize>,
    pub(super) feed_forward_norm: Vec<f32>,
    /// Alternating groups of rows of the gate and up projections.
    pub(super) gate_up: M,
    pub(super) down: Partial<M>,
}

/// Matrix of which a rank has columns, so that its products are partial sums.
#[derive(Debug)]
pub(super) struct Partial<M = Matrix> {
    pub(super) matrix: M,
    /// Added after the all-reduce.
    pub(super) bias: Option<Vec<f32>>,
}

/// Heads of one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) dim: usize,
}

impl<M: Packed> Layer<M> {
    pub(super) fn bytes(&self) -> usize {
        self.matrices().map(Packed::bytes).sum()
    }

    /// Lists the formats of the layer's matrices: just one if they are all equal.
    pub(super) fn formats(&self) -> String {
        let mut formats: Vec<_> = self.matrices().map(Packed::format).collect();
        formats.dedup();
        formats.join("+")
    }

    pub(super) fn matrices(&self) -> impl Iterator<Item = &M> {
        self.qkv.iter().chain([&self.output.matrix, &self.gate_up, &self.down.matrix])
    }
}
