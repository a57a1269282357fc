//! The network: embedding, layers of attention and feed-forward, output.

use candle_core::{D, Device, Result, Tensor};
use candle_nn::ops::{rms_norm, silu, softmax_last_dim};

use crate::{Config, LoadError, RopeTable, Weights};

/// The positions by which a request's cache grows.
const CACHE_STEP: usize = 256;

/// A Llama model (Touvron et al., arXiv:2302.13971) with grouped-query attention.
#[derive(Debug)]
pub struct Model {
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
    output: Linear,
    rope: RopeTable,
    context: usize,
    vocab_size: usize,
}

/// The keys and values of one request, each `[1, kv_heads, positions, head_dim]` a layer.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<candle_nn::kv_cache::KvCache>,
    len: usize,
}

impl KvCache {
    /// The number of tokens it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Model {
    /// Builds the network, with room for `context` positions.
    ///
    /// # Errors
    ///
    /// A tensor that is missing or has the wrong shape.
    pub fn new(
        config: &Config,
        context: usize,
        weights: &Weights,
    ) -> std::result::Result<Self, LoadError> {
        refuse_what_is_not_done(config)?;
        let (hidden, vocab_size) = (config.hidden_size, config.vocab_size);
        let embedding = weights.take("model.embed_tokens.weight", &[vocab_size, hidden])?;
        let output = if config.tied {
            embedding.clone()
        } else {
            weights.take("lm_head.weight", &[vocab_size, hidden])?
        };
        let layers = (0..config.layers).map(|index| Layer::new(config, index, weights));
        Ok(Self {
            layers: layers.collect::<std::result::Result<_, _>>()?,
            norm: Norm::new(config, "model.norm.weight", weights)?,
            output: Linear(output),
            rope: RopeTable::new(&config.rope, config.head_dim, context)
                .map_err(LoadError::parse("config.json"))?,
            embedding,
            context,
            vocab_size,
        })
    }

    /// The most tokens a request can have, reply included.
    pub fn context(&self) -> usize {
        self.context
    }

    /// One more than the largest token.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// An empty cache for one request.
    pub fn cache(&self) -> KvCache {
        let empty = || candle_nn::kv_cache::KvCache::new(2, CACHE_STEP);
        KvCache { layers: self.layers.iter().map(|_| empty()).collect(), len: 0 }
    }

    /// Runs `tokens`, which follow what `cache` holds; gives the logits after the last one.
    ///
    /// # Errors
    ///
    /// If there is no token, or one is not in the vocabulary or beyond the context.
    pub fn forward(&self, tokens: &[u32], cache: &mut KvCache) -> Result<Vec<f32>> {
        let x = self.hidden(tokens, cache)?;
        let last = x.narrow(1, tokens.len() - 1, 1)?;
        self.output.forward(&self.norm.forward(&last)?)?.flatten_all()?.to_vec1()
    }

    /// The residual stream after the last layer: `[1, tokens, hidden]`.
    fn hidden(&self, tokens: &[u32], cache: &mut KvCache) -> Result<Tensor> {
        let ids = Tensor::new(tokens, &Device::Cpu)?;
        let mut x = self.embedding.index_select(&ids, 0)?.unsqueeze(0)?;
        let mask = mask(tokens.len(), cache.len)?;
        for (layer, past) in self.layers.iter().zip(&mut cache.layers) {
            x = layer.forward(&x, cache.len, &self.rope, mask.as_ref(), past)?;
        }
        cache.len += tokens.len();
        Ok(x)
    }
}

/// What a configuration can ask for and this network does not have.
fn refuse_what_is_not_done(config: &Config) -> std::result::Result<(), LoadError> {
    let biases = config.qkv_bias || config.output_bias || config.mlp_bias;
    let windows = config.windows.iter().any(Option::is_some);
    for (asked, what) in [
        (biases, "a bias"),
        (config.qk_norm, "the norm of queries and keys"),
        (windows, "a sliding window"),
    ] {
        if asked {
            return Err(LoadError::unsupported(what, "asked for", "a network without it"));
        }
    }
    Ok(())
}

/// What keeps a token from seeing later ones: 0 or minus infinity, `[tokens, past + tokens]`.
fn mask(tokens: usize, past: usize) -> Result<Option<Tensor>> {
    if tokens == 1 {
        return Ok(None);
    }
    let columns = past + tokens;
    let cell = |i: usize| {
        if i % columns > past + i / columns { f32::NEG_INFINITY } else { 0.0 }
    };
    let cells: Vec<f32> = (0..tokens * columns).map(cell).collect();
    Tensor::from_vec(cells, (tokens, columns), &Device::Cpu).map(Some)
}

#[derive(Debug)]
struct Layer {
    attention_norm: Norm,
    attention: Attention,
    feed_forward_norm: Norm,
    feed_forward: FeedForward,
}

impl Layer {
    fn new(
        config: &Config,
        index: usize,
        weights: &Weights,
    ) -> std::result::Result<Self, LoadError> {
        let name = |part: &str| format!("model.layers.{index}.{part}.weight");
        Ok(Self {
            attention_norm: Norm::new(config, &name("input_layernorm"), weights)?,
            attention: Attention::new(config, name, weights)?,
            feed_forward_norm: Norm::new(config, &name("post_attention_layernorm"), weights)?,
            feed_forward: FeedForward::new(config, name, weights)?,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        position: usize,
        rope: &RopeTable,
        mask: Option<&Tensor>,
        past: &mut candle_nn::kv_cache::KvCache,
    ) -> Result<Tensor> {
        let attended = self.attention_norm.forward(x)?;
        let x = (x + self.attention.forward(&attended, position, rope, mask, past)?)?;
        let fed = self.feed_forward.forward(&self.feed_forward_norm.forward(&x)?)?;
        x + fed
    }
}

#[derive(Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Attention {
    fn new(
        config: &Config,
        name: impl Fn(&str) -> String,
        weights: &Weights,
    ) -> std::result::Result<Self, LoadError> {
        let hidden = config.hidden_size;
        let (queries, keys) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let linear = |part: &str, rows, columns| {
            weights.take(&name(&format!("self_attn.{part}")), &[rows, columns]).map(Linear)
        };
        Ok(Self {
            query: linear("q_proj", queries, hidden)?,
            key: linear("k_proj", keys, hidden)?,
            value: linear("v_proj", keys, hidden)?,
            output: linear("o_proj", hidden, queries)?,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        position: usize,
        rope: &RopeTable,
        mask: Option<&Tensor>,
        past: &mut candle_nn::kv_cache::KvCache,
    ) -> Result<Tensor> {
        let tokens = x.dim(1)?;
        let split = |x: Tensor, heads: usize| {
            x.reshape((1, tokens, heads, self.head_dim))?.transpose(1, 2)?.contiguous()
        };
        let q = rope.apply(&split(self.query.forward(x)?, self.heads)?, position)?;
        let k = rope.apply(&split(self.key.forward(x)?, self.kv_heads)?, position)?;
        let v = split(self.value.forward(x)?, self.kv_heads)?;
        let (k, v) = past.append(&k, &v)?;

        // The query heads of a group share keys and values: they become rows of one product.
        let rows = self.heads / self.kv_heads * tokens;
        let q = (q / (self.head_dim as f64).sqrt())?;
        let q = q.reshape((1, self.kv_heads, rows, self.head_dim))?;
        let scores = q.matmul(&k.contiguous()?.t()?)?;
        let scores = scores.reshape((1, self.heads, tokens, position + tokens))?;
        let scores = match mask {
            Some(mask) => scores.broadcast_add(mask)?,
            None => scores,
        };
        let shares = softmax_last_dim(&scores)?;
        let shares = shares.reshape((1, self.kv_heads, rows, position + tokens))?;
        let mixed = shares.matmul(&v.contiguous()?)?;
        let mixed = mixed.reshape((1, self.heads, tokens, self.head_dim))?.transpose(1, 2)?;
        self.output.forward(&mixed.reshape((1, tokens, self.heads * self.head_dim))?)
    }
}

/// SwiGLU (Shazeer, arXiv:2002.05202).
#[derive(Debug)]
struct FeedForward {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl FeedForward {
    fn new(
        config: &Config,
        name: impl Fn(&str) -> String,
        weights: &Weights,
    ) -> std::result::Result<Self, LoadError> {
        let (narrow, wide) = (config.hidden_size, config.intermediate_size);
        let linear = |part: &str, rows, columns| {
            weights.take(&name(&format!("mlp.{part}")), &[rows, columns]).map(Linear)
        };
        Ok(Self {
            gate: linear("gate_proj", wide, narrow)?,
            up: linear("up_proj", wide, narrow)?,
            down: linear("down_proj", narrow, wide)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gated = (silu(&self.gate.forward(x)?)? * self.up.forward(x)?)?;
        self.down.forward(&gated)
    }
}

/// RMSNorm (Zhang and Sennrich, arXiv:1910.07467).
#[derive(Debug)]
struct Norm {
    scale: Tensor,
    eps: f32,
}

impl Norm {
    fn new(config: &Config, name: &str, weights: &Weights) -> std::result::Result<Self, LoadError> {
        Ok(Self { scale: weights.take(name, &[config.hidden_size])?, eps: config.rms_norm_eps })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        rms_norm(&x.contiguous()?, &self.scale, self.eps)
    }
}

/// `x Wᵀ`, with `W` as it is stored: `[outputs, inputs]`.
#[derive(Debug)]
struct Linear(Tensor);

impl Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inputs = x.dim(D::Minus1)?;
        let shape = x.dims().to_vec();
        let rows = x.elem_count() / inputs;
        let y = x.reshape((rows, inputs))?.matmul(&self.0.t()?)?;
        let outputs = self.0.dim(0)?;
        y.reshape((shape[0], shape[1], outputs))
    }
}
