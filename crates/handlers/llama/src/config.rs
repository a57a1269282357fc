//! A model's shape: `config.json` and `generation_config.json`.

use std::path::{Path, PathBuf};

use nsbridge_handler::Model;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::LoadError;

const FILE: &str = "config.json";

/// The shape of a Llama model and what its authors advise for sampling.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Positions the model was made for.
    pub context: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f32,
    /// Rotary positions.
    pub rope: Rope,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
    /// Tokens that end a reply.
    pub eos: Vec<u32>,
    /// What `generation_config.json` advises.
    pub(crate) advice: Advice,
}

/// Rotary position embedding (Su et al., arXiv:2104.09864).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f64,
    /// How the frequencies were changed for longer contexts.
    pub scaling: RopeScaling,
}

/// How rotary frequencies are scaled, as `rope_type` in transformers.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// `default`: not at all.
    None,
    /// `linear`: all divided by the factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// `llama3`: the low ones divided, the high ones kept, smoothly between.
    Llama3 {
        /// What the low frequencies are divided by.
        factor: f64,
        /// Below this many turns per original context a frequency is low.
        low_freq_factor: f64,
        /// Above this many turns per original context a frequency is high.
        high_freq_factor: f64,
        /// The context before the scaling.
        original_context: f64,
    },
}

/// Sampling parameters that the model's authors advise.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Advice {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) eos_token_id: Option<OneOrMany>,
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

/// `config.json`, with the fields of transformers 4 and 5.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    architectures: Vec<String>,
    hidden_size: usize,
    intermediate_size: usize,
    vocab_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    rms_norm_eps: f32,
    rope_theta: Option<f64>,
    rope_scaling: Option<Map<String, Value>>,
    rope_parameters: Option<Map<String, Value>>,
    #[serde(default)]
    tie_word_embeddings: bool,
    eos_token_id: Option<OneOrMany>,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    quantization_config: Option<Value>,
}

impl Config {
    /// Reads the shape of a model.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or a field that cannot be served.
    pub fn read(model: &Model) -> Result<Self, LoadError> {
        let advice = find_json(model, "generation_config.json")?;
        Self::new(read_json(model, FILE)?, advice.unwrap_or_default())
    }

    fn new(file: File, advice: Advice) -> Result<Self, LoadError> {
        file.refuse_what_is_not_done()?;
        let heads = file.num_attention_heads;
        let rope = file.rope()?;
        let eos = advice.eos_token_id.clone().or(file.eos_token_id);
        let config = Self {
            hidden_size: file.hidden_size,
            intermediate_size: file.intermediate_size,
            vocab_size: file.vocab_size,
            layers: file.num_hidden_layers,
            heads,
            kv_heads: file.num_key_value_heads.unwrap_or(heads),
            head_dim: file.head_dim.unwrap_or(file.hidden_size / heads.max(1)),
            context: file.max_position_embeddings,
            rms_norm_eps: file.rms_norm_eps,
            rope,
            tied: file.tie_word_embeddings,
            eos: eos.map(Vec::from).unwrap_or_default(),
            advice,
        };
        config.refuse_impossible_shapes()?;
        Ok(config)
    }

    fn refuse_impossible_shapes(&self) -> Result<(), LoadError> {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        let refuse = |field: &str, found: usize, supported: &str| {
            Err(LoadError::unsupported(format!("{field} in {FILE}"), found.to_string(), supported))
        };
        if heads == 0 {
            return refuse("num_attention_heads", heads, "one or more");
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return refuse("num_key_value_heads", kv_heads, "a divisor of num_attention_heads");
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return refuse("head_dim", self.head_dim, "an even number");
        }
        if self.context < 2 {
            return refuse("max_position_embeddings", self.context, "two or more");
        }
        Ok(())
    }
}

impl File {
    fn refuse_what_is_not_done(&self) -> Result<(), LoadError> {
        let refuse = |field: &str, found: &str, supported: &str| {
            Err(LoadError::unsupported(format!("{field} in {FILE}"), found, supported))
        };
        if self.architectures != ["LlamaForCausalLM"] {
            let found = format!("{:?}", self.architectures);
            return refuse("architectures", &found, "[\"LlamaForCausalLM\"]");
        }
        match self.hidden_act.as_deref() {
            None | Some("silu") => {}
            Some(other) => return refuse("hidden_act", other, "silu"),
        }
        if self.attention_bias {
            return refuse("attention_bias", "true", "false");
        }
        if self.mlp_bias {
            return refuse("mlp_bias", "true", "false");
        }
        if self.quantization_config.is_some() {
            return refuse("quantization_config", "present", "an unquantised model");
        }
        Ok(())
    }

    /// `rope_parameters` in transformers 5, `rope_theta` and `rope_scaling` in 4.
    fn rope(&self) -> Result<Rope, LoadError> {
        let (parameters, name) = match (&self.rope_parameters, &self.rope_scaling) {
            (Some(parameters), _) => (parameters, "rope_parameters"),
            (None, Some(scaling)) => (scaling, "rope_scaling"),
            (None, None) => (&Map::new(), "rope_scaling"),
        };
        let theta = parameters.get("rope_theta").and_then(Value::as_f64);
        let theta = theta.or(self.rope_theta).unwrap_or(10_000.0);
        Ok(Rope { theta, scaling: scaling(parameters, name)? })
    }
}

fn scaling(parameters: &Map<String, Value>, name: &str) -> Result<RopeScaling, LoadError> {
    let kind = parameters.get("rope_type").or_else(|| parameters.get("type"));
    let number = |field: &str| {
        let value = parameters.get(field).and_then(Value::as_f64).filter(|value| *value > 0.0);
        value.ok_or_else(|| {
            LoadError::Missing(format!("{name}.{field} in {FILE} must be a number above 0"))
        })
    };
    match kind.and_then(Value::as_str).unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_context: number("original_max_position_embeddings")?,
        }),
        other => Err(LoadError::unsupported(
            format!("{name}.rope_type in {FILE}"),
            other,
            "default, linear or llama3",
        )),
    }
}

pub(crate) fn read_json<T: DeserializeOwned>(model: &Model, path: &str) -> Result<T, LoadError> {
    let text = model.read(path).map_err(LoadError::read)?;
    serde_json::from_slice(&text).map_err(LoadError::parse(within(model, path)))
}

/// The same, for a file that is optional.
pub(crate) fn find_json<T: DeserializeOwned>(
    model: &Model,
    path: &str,
) -> Result<Option<T>, LoadError> {
    let text = model.find(path).map_err(LoadError::read)?;
    let parse = |text: Vec<u8>| serde_json::from_slice(&text);
    text.map(parse).transpose().map_err(LoadError::parse(within(model, path)))
}

/// A file's path as a person would write it.
pub(crate) fn within(model: &Model, path: &str) -> PathBuf {
    Path::new(&model.place()).join(path)
}

#[cfg(test)]
mod tests;
