//! Shard of a model: the part that one CPU rank holds.

use std::sync::Arc;

use nsbridge_kernels::ThreadPool;
use nsbridge_kernels::collectives::Communicator;
use nsbridge_kernels::matrix::{Matrix, QuantizationBuffers};

use crate::config::Config;
use crate::error::LoadError;
use crate::kv::{Shape, Values};
use crate::rope::RopeTable;
use crate::weights::Weights;
use nsbridge_kernels::Tier;

use super::Setup;
use super::load::{self, CpuPack, Loader};
use super::part::{Heads, Layer, Part, Tokens};

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
    /// True if a step ends with the last norm.
    pub(super) hidden: bool,
    /// Shared by all ranks.
    pub(super) rope: Arc<RopeTable>,
    pub(super) eps: f32,
    pub(super) heads: Heads,
    pub(super) tier: Tier,
    pub(super) pool: ThreadPool,
    pub(super) kv: Kv,
    pub(super) scratch: Scratch,
    pub(super) comm: Box<dyn Communicator>,
}

/// Keys and values of the rank's heads.
#[derive(Debug)]
pub(super) struct Kv {
    pub(super) shape: Shape,
    pub(super) values: Values,
}

/// Buffers reused across steps; each is as long as the largest step so far needed.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Residual stream.
    pub(super) stream: Vec<f32>,
    pub(super) normed: Vec<f32>,
    pub(super) qkv: Vec<f32>,
    pub(super) attended: Vec<f32>,
    /// Splits of the attention of few tokens.
    pub(super) partials: Vec<f32>,
    pub(super) wide: Vec<f32>,
    /// Sums added to the residual stream.
    pub(super) sums: Vec<f32>,
    pub(super) logits: Vec<f32>,
    /// On rank 0, the logits of all ranks.
    pub(super) gathered: Vec<f32>,
    pub(super) blocks: QuantizationBuffers,
}

impl Shard {
    pub(super) fn load(
        config: &Config,
        rope: Arc<RopeTable>,
        weights: &Weights,
        setup: &Setup,
        (part, comm): (Part, Box<dyn Communicator>),
    ) -> Result<Self, LoadError> {
        let tier = setup.tier.unwrap_or_else(Tier::best);
        let pack = CpuPack::new(setup, part.of, tier);
        let mut loader = Loader::new(config, weights, part, setup.format, pack);
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
            pool: ThreadPool::new(load::threads(setup.threads, bytes, part.of)),
            kv: Kv { shape, values: Values::new(setup.kv, shape)? },
            scratch: Scratch::default(),
            hidden: setup.hidden,
            embedding,
            output,
            layers,
            tier,
            comm,
        })
    }

    /// Returns the formats and the arithmetic, which determine the bits besides the model files.
    pub(super) fn formats(&self) -> String {
        let layers: Vec<_> = self.layers.iter().map(Layer::formats).collect();
        let kv = self.kv.values.format();
        let own = [&self.embedding].into_iter().chain(&self.output);
        let mut matrices = own.chain(self.layers.iter().flat_map(Layer::matrices));
        let order = matrices.find_map(Matrix::bf16_order);
        let products = order.map_or_else(String::new, |order| format!(" products {order}"));
        format!("{:?} {} kv {kv:?}{products}", self.embedding.format(), layers.join(" "))
    }
}
