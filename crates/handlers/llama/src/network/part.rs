//! One rank's part of the network: which rows, columns and heads, and its layers' matrices.

use std::ops::Range;

use crate::Config;
use crate::kernel::LANES;
use crate::matrix::Matrix;

/// One rank's place among all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) rank: usize,
    pub(super) of: usize,
}

impl Part {
    /// Its share of what all have in equal parts.
    pub(super) fn share(self, size: usize) -> Range<usize> {
        let share = size / self.of;
        self.rank * share..(self.rank + 1) * share
    }

    /// The heads of keys and values that its queries look at. Where there are fewer than ranks,
    /// several ranks have the same one.
    pub(super) fn kv_heads(self, config: &Config) -> Range<usize> {
        let first = self.rank * config.kv_heads / self.of;
        first..first + (config.kv_heads / self.of).max(1)
    }

    /// The rows of queries that are its heads'.
    pub(super) fn queries(self, config: &Config) -> Range<usize> {
        rows_of(self.share(config.heads), config)
    }

    /// The rows of keys, and of values, that are its heads'.
    pub(super) fn keys(self, config: &Config) -> Range<usize> {
        rows_of(self.kv_heads(config), config)
    }

    /// The tokens whose embedding and logits are its: in whole tiles.
    pub(super) fn tokens(self, vocab_size: usize) -> Tokens {
        let each = vocab_size.div_ceil(self.of).next_multiple_of(LANES);
        Tokens { first: vocab_size.min(self.rank * each), each }
    }
}

fn rows_of(heads: Range<usize>, config: &Config) -> Range<usize> {
    heads.start * config.head_dim..heads.end * config.head_dim
}

/// Which tokens' rows are one rank's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    pub(super) first: usize,
    /// As many as each rank has, but the last ones, which may have fewer or none.
    pub(super) each: usize,
}

#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attention_norm: Vec<f32>,
    /// Rows of queries, then of keys, then of values: one matrix where they are of one format.
    pub(super) qkv: Vec<Matrix>,
    /// Of each head's queries, and of its keys.
    pub(super) head_norms: Option<(Vec<f32>, Vec<f32>)>,
    pub(super) output: Partial,
    pub(super) window: Option<usize>,
    pub(super) feed_forward_norm: Vec<f32>,
    /// Tiles of the gate and of what it gates, in turn.
    pub(super) gate_up: Matrix,
    pub(super) down: Partial,
}

/// A matrix of which a rank has columns, so that its products are parts of sums.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) matrix: Matrix,
    /// Added to the whole sum.
    pub(super) bias: Option<Vec<f32>>,
}

/// Those of one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) dim: usize,
}

impl Layer {
    pub(super) fn bytes(&self) -> usize {
        self.matrices().map(Matrix::bytes).sum()
    }

    /// Those of its matrices: one word where all are alike.
    pub(super) fn formats(&self) -> String {
        let mut formats: Vec<_> = self.matrices().map(Matrix::format).collect();
        formats.dedup();
        format!("{formats:?}").trim_matches(['[', ']']).replace(", ", "+")
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.qkv.iter().chain([&self.output.matrix, &self.gate_up, &self.down.matrix])
    }
}
