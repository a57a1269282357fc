//! Model configuration, from `config.json` and `generation_config.json`, or from GGUF metadata.

mod advice;
mod family;
mod file;
mod gguf;
mod rope;
mod tensors;

use nsbridge_checkpoint::Checkpoint;
use nsbridge_handler::Model;
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub(crate) use self::rope::usual_attention_factor;
pub use self::rope::{Rope, RopeScaling};
pub use self::tensors::tensors;

pub(crate) use self::advice::Advice;
pub(crate) use self::file::{SCALED_TOGETHER, scaled_together};
pub(crate) use self::tensors::gguf_name;

use self::file::File;
use crate::error::{LoadError, within};

const FILE: &str = "config.json";

/// Upper limit of a dimension, above any model's, and small enough that products of two do not
/// overflow.
const MAX_DIMENSION: usize = 1 << 24;
const MAX_LAYERS: usize = 1 << 12;

/// Shape of a dense Llama, Mistral, Qwen2 or Qwen3 model, with its authors' sampling defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Number of positions that the model was made for.
    pub context: usize,
    /// Term added to the mean square in RMSNorm.
    pub rms_norm_eps: f32,
    /// Rotary position embedding.
    pub rope: Rope,
    /// True if the output matrix is tied to the embedding.
    pub tied: bool,
    /// Tokens that end a reply.
    pub eos: Vec<u32>,
    /// Sampling parameters from `generation_config.json`.
    pub(crate) advice: Advice,
    /// True if the query, key and value projections have a bias.
    pub qkv_bias: bool,
    /// True if the attention's output projection has a bias.
    pub output_bias: bool,
    /// True if the three projections of the feed-forward layer have a bias.
    pub mlp_bias: bool,
    /// True if each head's query and key have their own RMSNorm before the rotary embedding.
    pub qk_norm: bool,
    /// Sliding window of each layer. With `Some(w)`, the token at position `p` sees `w` positions:
    /// itself and the `w - 1` before it (`p - w < position <= p`).
    pub windows: Vec<Option<usize>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl From<OneOrMany> for Vec<u32> {
    fn from(ids: OneOrMany) -> Self {
        match ids {
            OneOrMany::One(id) => vec![id],
            OneOrMany::Many(ids) => ids,
        }
    }
}

impl Config {
    /// Reads the configuration of a model.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read, or if a field has an unsupported value.
    pub fn read(model: &Model) -> Result<Self, LoadError> {
        let advice = find_json(model, advice::FILE)?.unwrap_or_default();
        let is_gguf = |path: &str| path.ends_with(".gguf") && !path.contains('/');
        match find_json(model, FILE)? {
            Some(file) => Self::new(&file, advice),
            None if model.files().any(is_gguf) => Self::of_gguf(model, advice),
            None if model.files().any(|path| path == "adapter_config.json") => {
                Err(LoadError::Missing(format!(
                    "the model in {} is a LoRA adapter, without {FILE}: merge it into its base model, \
                     and save that",
                    model.place()
                )))
            }
            None => {
                if model.files().next().is_some() {
                    // What is there instead of weights says more than a missing file.
                    Checkpoint::open(model).map_err(LoadError::read)?;
                }
                // This call returns the error that the file is missing.
                Self::new(&read_json(model, FILE)?, advice)
            }
        }
    }

    /// Returns true if the model's authors recommend how to sample, in `generation_config.json` or in
    /// the metadata of a GGUF file.
    pub fn recommends_sampling(&self) -> bool {
        self.advice.recommends_sampling()
    }

    /// Reads the configuration from the metadata of a GGUF file.
    fn of_gguf(model: &Model, advice: Advice) -> Result<Self, LoadError> {
        let checkpoint = Checkpoint::open(model).map_err(LoadError::read)?;
        if checkpoint.metadata().is_empty() {
            // Safetensors files take precedence, and do not contain the configuration.
            return Err(LoadError::Missing(format!(
                "{} has no {FILE}: what is read there are its .safetensors files, for which a .gguf \
                 file beside them does not speak; add the {FILE}, or take them away",
                model.place()
            )));
        }
        let place = within(model, checkpoint.files().next().unwrap_or_default());
        let file = serde_json::from_value(gguf::config(&checkpoint)?);
        let advice = advice.or_gguf(&checkpoint);
        let mut config = Self::new(&file.map_err(LoadError::parse(place))?, advice)?;
        gguf::check(&checkpoint, &config)?;
        if let Some(scaling) = gguf::rope_factors(&checkpoint)? {
            if matches!(&scaling, RopeScaling::Factors { factors }
                if factors.len() != config.head_dim / 2)
            {
                let supported = format!("one number for each of {} pairs", config.head_dim / 2);
                return Err(LoadError::unsupported(
                    "rope_freqs.weight",
                    "of another length",
                    supported,
                ));
            }
            if config.rope.scaling != RopeScaling::None {
                let field = "rope_freqs.weight";
                let found = "there beside another scaling in the GGUF file";
                return Err(LoadError::unsupported(field, found, "one of both"));
            }
            config.rope.scaling = scaling;
        }
        Ok(config)
    }

    fn new(file: &File, advice: Advice) -> Result<Self, LoadError> {
        let family = file.family()?;
        file.refuse_what_is_not_done(family)?;
        let mut eos = advice.eos_token_ids.clone().unwrap_or_default();
        // An empty list says that no token ends a reply.
        if advice.eos_token_ids.is_none() || !eos.is_empty() {
            let others: Vec<u32> = file.eos_token_id.clone().map(Vec::from).unwrap_or_default();
            for id in others {
                if !eos.contains(&id) {
                    eos.push(id);
                }
            }
        }
        let config = Self {
            hidden_size: file.hidden_size,
            intermediate_size: file.intermediate_size,
            vocab_size: file.vocab_size,
            layers: file.num_hidden_layers,
            heads: file.num_attention_heads,
            kv_heads: file.kv_heads(family),
            head_dim: file.head_dim(family)?,
            context: file.max_position_embeddings,
            rms_norm_eps: file.rms_norm_eps,
            rope: file.rope()?,
            tied: file.tie_word_embeddings,
            eos,
            advice,
            qkv_bias: family.always_has_qkv_bias() || file.attention_bias(family),
            output_bias: file.attention_bias(family),
            mlp_bias: file.mlp_bias,
            qk_norm: family.norms_queries_and_keys(),
            windows: file.windows(family)?,
        };
        config.refuse_impossible_shapes()?;
        Ok(config)
    }

    /// Returns llama.cpp's name of the architecture, derived from the family's biases and norms.
    pub(crate) fn gguf_architecture(&self) -> &'static str {
        match (self.qk_norm, self.qkv_bias && !self.output_bias) {
            (true, _) => "qwen3",
            (false, true) => "qwen2",
            (false, false) => "llama",
        }
    }

    fn refuse_impossible_shapes(&self) -> Result<(), LoadError> {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        for (field, found, most) in [
            ("hidden_size", self.hidden_size, MAX_DIMENSION),
            ("intermediate_size", self.intermediate_size, MAX_DIMENSION),
            ("vocab_size", self.vocab_size, MAX_DIMENSION),
            ("num_hidden_layers", self.layers, MAX_LAYERS),
            ("num_attention_heads", heads, MAX_DIMENSION),
            ("head_dim", self.head_dim, MAX_DIMENSION),
        ] {
            if found == 0 || found > most {
                return refused(field, found, &format!("1 to {most}"));
            }
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return refused("num_key_value_heads", kv_heads, "a divisor of num_attention_heads");
        }
        if !self.head_dim.is_multiple_of(2) {
            return refused("head_dim", self.head_dim, "an even number");
        }
        if self.context < 2 {
            return refused("max_position_embeddings", self.context, "two or more");
        }
        if !self.rms_norm_eps.is_finite() || self.rms_norm_eps < 0.0 {
            return refused("rms_norm_eps", self.rms_norm_eps, "a small number, 0 or more");
        }
        Ok(())
    }
}

/// Returns an error that names a field of `config.json`, its value and the supported ones.
#[expect(clippy::needless_pass_by_value, reason = "what is found is often made on the spot")]
fn refused<T>(field: &str, found: impl ToString, supported: &str) -> Result<T, LoadError> {
    Err(LoadError::unsupported(format!("{field} in {FILE}"), found.to_string(), supported))
}

pub(crate) fn read_json<T: DeserializeOwned>(model: &Model, path: &str) -> Result<T, LoadError> {
    let text = model.read(path).map_err(LoadError::read)?;
    parse(&text).map_err(LoadError::parse(within(model, path)))
}

/// Reads a JSON file of the model, if it exists.
pub(crate) fn find_json<T: DeserializeOwned>(
    model: &Model,
    path: &str,
) -> Result<Option<T>, LoadError> {
    let text = model.read_optional(path).map_err(LoadError::read)?;
    let parsed = text.map(|text| parse(&text)).transpose();
    parsed.map_err(LoadError::parse(within(model, path)))
}

/// Reads JSON, with or without the byte order mark that some editors write.
fn parse<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text))
}

#[cfg(test)]
mod tests;
