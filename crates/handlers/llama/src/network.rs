//! The network: embedding, layers of attention and feed-forward, output.
//!
//! A step runs any mix of prompt chunks and single tokens of several sequences at once. All of them
//! are rows; only attention knows which sequence a row is of. Each row's numbers are the same
//! whatever runs beside it.

mod load;
mod step;

use crate::kernel::Tier;
use crate::kv::{KvCache, KvFormat, Shape, Table};
use crate::matrix::{Format, Matrix};
use crate::pool::Pool;
use crate::{Config, LoadError, RopeTable, Weights};

use self::load::Loader;
use self::step::{Scratch, WIDEST_HEAD};

/// How a model is held and run. None of it but the formats changes a bit of what it computes.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Threads that compute, the caller's among them; by default as many as there are cores, or one
    /// for a model that a core's caches hold.
    pub threads: Option<usize>,
    /// The instructions; by default the best of this machine.
    pub tier: Option<Tier>,
    /// How matrices are kept; by default as the checkpoint has them.
    pub format: Option<Format>,
    /// How keys and values are kept.
    pub kv: KvFormat,
    /// Blocks of 32 positions for keys and values of all sequences together.
    pub blocks: usize,
}

impl Default for Setup {
    fn default() -> Self {
        let kv = KvFormat::default();
        Self { threads: None, tier: None, format: None, kv, blocks: 64 }
    }
}

/// A language model of the Llama family (Touvron et al., arXiv:2302.13971).
#[derive(Debug)]
pub struct Model {
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// `None` if it is the embedding.
    output: Option<Matrix>,
    rope: RopeTable,
    eps: f32,
    shape: Heads,
    context: usize,
    tier: Tier,
    pool: Pool,
    cache: KvCache,
    scratch: Scratch,
}

#[derive(Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    /// Queries, then keys, then values.
    qkv: Matrix,
    /// Of each head's queries, and of its keys.
    head_norms: Option<(Vec<f32>, Vec<f32>)>,
    output: Matrix,
    window: Option<usize>,
    feed_forward_norm: Vec<f32>,
    /// Tiles of the gate and of what it gates, in turn.
    gate_up: Matrix,
    down: Matrix,
}

#[derive(Clone, Copy, Debug)]
struct Heads {
    queries: usize,
    keys: usize,
    dim: usize,
}

/// Tokens of one sequence that a step runs.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// What went before; blocks for these tokens are reserved in it.
    pub table: &'a mut Table,
    /// At least one.
    pub tokens: &'a [u32],
    /// After how many of the last tokens the logits are wanted.
    pub logits: usize,
}

/// The logits of a step, a row for each that was wanted, in the order of the chunks.
#[derive(Debug)]
pub struct Logits<'a> {
    data: &'a [f32],
    stride: usize,
    vocab_size: usize,
}

impl<'a> Logits<'a> {
    /// The rows, each as long as the vocabulary.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &'a [f32]> + use<'a> {
        let vocab_size = self.vocab_size;
        self.data.chunks_exact(self.stride).map(move |row| &row[..vocab_size])
    }
}

impl Model {
    /// Builds the network, with room for `context` positions of a sequence.
    ///
    /// # Errors
    ///
    /// A tensor that is missing or has the wrong shape, or too little memory.
    pub fn new(
        config: &Config,
        context: usize,
        weights: &Weights,
        setup: &Setup,
    ) -> Result<Self, LoadError> {
        if config.head_dim > WIDEST_HEAD {
            let (found, supported) =
                (config.head_dim.to_string(), format!("{WIDEST_HEAD} or less"));
            return Err(LoadError::unsupported("head_dim in config.json", found, supported));
        }
        let tier = setup.tier.unwrap_or_else(Tier::best);
        let mut loader = Loader::new(config, weights, setup.format, (setup.threads, tier));
        let embedding = loader.embedding()?;
        let output = loader.output()?;
        let layer = |index| loader.layer(index);
        let layers = (0..config.layers).map(layer).collect::<Result<Vec<_>, _>>()?;
        let shape = Shape {
            layers: config.layers,
            kv_heads: config.kv_heads,
            dim: config.head_dim,
            blocks: setup.blocks,
        };
        let bytes: usize = layers.iter().map(Layer::bytes).sum();
        let threads = setup.threads.unwrap_or_else(|| load::threads(bytes));
        Ok(Self {
            embedding,
            layers,
            norm: load::norm(weights, "model.norm.weight", config.hidden_size)?,
            output,
            rope: RopeTable::new(&config.rope, config.head_dim, context),
            eps: config.rms_norm_eps,
            shape: Heads { queries: config.heads, keys: config.kv_heads, dim: config.head_dim },
            context,
            tier,
            pool: Pool::new(threads),
            cache: KvCache::new(setup.kv, shape)?,
            scratch: Scratch::default(),
        })
    }

    /// The most tokens a sequence can have, reply included.
    pub fn context(&self) -> usize {
        self.context
    }

    /// One more than the largest token.
    pub fn vocab_size(&self) -> usize {
        self.embedding.rows
    }

    /// The keys and values of all sequences.
    pub fn cache(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    /// What decides the bits beside the files: formats, and the rules of this version.
    pub fn arithmetic(&self) -> String {
        let kv = match self.cache.data {
            crate::kv::Both::F32(_) => KvFormat::F32,
            crate::kv::Both::Bf16(_) => KvFormat::Bf16,
        };
        let format = |matrix: &Matrix| format!("{:?}", matrix.format());
        let layers: Vec<_> = self.layers.iter().map(|layer| format(&layer.qkv)).collect();
        format!("{} {} kv {kv:?}", format(&self.embedding), layers.join(" "))
    }
}

impl Layer {
    fn bytes(&self) -> usize {
        [&self.qkv, &self.output, &self.gate_up, &self.down].map(Matrix::bytes).iter().sum()
    }
}
