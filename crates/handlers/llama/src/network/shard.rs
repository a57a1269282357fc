//! Shard of a model: the part that one CPU rank holds.

use std::sync::Arc;

use crate::comm::Comm;
use crate::kernel::Tier;
use crate::kv::{Shape, Values};
use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::{Config, LoadError, RopeTable, Weights};

use super::Setup;
use super::load::{self, Loader, Part};
use super::step::Scratch;

/// Rows or columns of every matrix that belong to one rank, and the keys and values of its heads.
/// The residual stream and its norms are replicated on all ranks.
#[derive(Debug)]
pub(super) struct Shard {
    /// Embedding rows of this rank's tokens.
    pub(super) embedding: Matrix,
    pub(super) tokens: Tokens,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Vec<f32>,
    /// `None` if the output is tied to the embedding.
    pub(super) output: Option<Matrix>,
    /// Shared by all ranks.
    pub(super) rope: Arc<RopeTable>,
    pub(super) eps: f32,
    pub(super) heads: Heads,
    pub(super) tier: Tier,
    pub(super) pool: Pool,
    pub(super) kv: Kv,
    pub(super) scratch: Scratch,
    pub(super) comm: Box<dyn Comm>,
}

/// Range of tokens whose rows belong to one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    pub(super) first: usize,
    /// Number of tokens per rank; the last ranks may have fewer, or none.
    pub(super) each: usize,
}

#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attention_norm: Vec<f32>,
    /// Rows of queries, then of keys, then of values: one matrix where their formats are equal.
    pub(super) qkv: Vec<Matrix>,
    /// Norms of each head's queries and of its keys.
    pub(super) head_norms: Option<(Vec<f32>, Vec<f32>)>,
    pub(super) output: Partial,
    pub(super) window: Option<usize>,
    pub(super) feed_forward_norm: Vec<f32>,
    /// Alternating tiles of the gate and up projections.
    pub(super) gate_up: Matrix,
    pub(super) down: Partial,
}

/// Matrix of which a rank has columns, so that its products are partial sums.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) matrix: Matrix,
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

/// Keys and values of the rank's heads.
#[derive(Debug)]
pub(super) struct Kv {
    pub(super) shape: Shape,
    pub(super) values: Values,
}

impl Shard {
    pub(super) fn load(
        config: &Config,
        rope: Arc<RopeTable>,
        weights: &Weights,
        setup: &Setup,
        (part, comm): (Part, Box<dyn Comm>),
    ) -> Result<Self, LoadError> {
        let tier = setup.tier.unwrap_or_else(Tier::best);
        let mut loader = Loader::new(config, weights, part, setup.format, (setup.threads, tier));
        let embedding = loader.embedding()?;
        let output = loader.output()?;
        let layer = |index| loader.layer(index);
        let layers = (0..config.layers).map(layer).collect::<Result<Vec<_>, _>>()?;
        let (dim, kv_heads) = (config.head_dim, part.kv_heads(config).len());
        let shape = Shape { layers: config.layers, kv_heads, dim, blocks: setup.blocks };
        let bytes: usize = layers.iter().map(Layer::bytes).sum();
        Ok(Self {
            tokens: part.tokens(config.vocab_size),
            norm: load::norm(weights, "model.norm.weight", config.hidden_size)?,
            rope,
            eps: config.rms_norm_eps,
            heads: Heads { queries: config.heads / part.of, keys: kv_heads, dim },
            pool: Pool::new(load::threads(setup.threads, bytes, part.of)),
            kv: Kv { shape, values: Values::new(setup.kv, shape)? },
            scratch: Scratch::default(),
            embedding,
            output,
            layers,
            tier,
            comm,
        })
    }

    /// Returns the formats, which determine the bits besides the model files.
    pub(super) fn formats(&self) -> String {
        let layers: Vec<_> = self.layers.iter().map(Layer::formats).collect();
        let kv = self.kv.values.format();
        format!("{:?} {} kv {kv:?}", self.embedding.format(), layers.join(" "))
    }
}

impl Layer {
    fn bytes(&self) -> usize {
        self.matrices().map(Matrix::bytes).sum()
    }

    /// Lists the formats of the layer's matrices: just one if they are all equal.
    fn formats(&self) -> String {
        let mut formats: Vec<_> = self.matrices().map(Matrix::format).collect();
        formats.dedup();
        format!("{formats:?}").trim_matches(['[', ']']).replace(", ", "+")
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.qkv.iter().chain([&self.output.matrix, &self.gate_up, &self.down.matrix])
    }
}
