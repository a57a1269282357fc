//! `config.json` as written by transformers 4 and 5.

mod quantization;
mod windows;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::family::Family;
use super::rope::{Parameters, Rope};
use super::{OneOrMany, refused};
use crate::error::LoadError;

pub(crate) use self::quantization::{SCALED_TOGETHER, scaled_together};

/// Fields that are read; the others do not affect what the model computes.
#[derive(Deserialize)]
pub(super) struct File {
    #[serde(default)]
    architectures: Vec<String>,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) vocab_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    #[serde(default)]
    num_key_value_heads: Setting<usize>,
    #[serde(default)]
    head_dim: Setting<usize>,
    pub(super) max_position_embeddings: usize,
    pub(super) rms_norm_eps: f32,
    rope_theta: Option<f64>,
    rope_scaling: Option<Map<String, Value>>,
    rope_parameters: Option<Map<String, Value>>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
    #[serde(default)]
    pub(super) tie_word_embeddings: bool,
    pub(super) eos_token_id: Option<OneOrMany>,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    pub(super) mlp_bias: bool,
    #[serde(default)]
    sliding_window: Setting<usize>,
    #[serde(default)]
    use_sliding_window: bool,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    is_causal: Option<bool>,
    use_bidirectional_attention: Option<bool>,
    quantization_config: Option<Value>,
}

impl File {
    pub(super) fn family(&self) -> Result<Family, LoadError> {
        Family::named(&self.architectures)
    }

    pub(super) fn refuse_what_is_not_done(&self, family: Family) -> Result<(), LoadError> {
        match self.hidden_act.as_deref() {
            None | Some("silu") => {}
            Some(other) => return refused("hidden_act", other, "silu"),
        }
        if self.mlp_bias && family != Family::Llama {
            return refused("mlp_bias", true, "false in this family");
        }
        if self.attention_bias && family == Family::Mistral {
            return refused("attention_bias", true, "false in this family");
        }
        if self.is_causal == Some(false) {
            return refused("is_causal", false, "true");
        }
        if self.use_bidirectional_attention == Some(true) {
            return refused("use_bidirectional_attention", true, "false");
        }
        self.quantization_config.as_ref().map_or(Ok(()), quantization::check)
    }

    /// Returns true if all four projections of the attention have biases.
    pub(super) fn attention_bias(&self, family: Family) -> bool {
        self.attention_bias && family.reads_attention_bias()
    }

    pub(super) fn kv_heads(&self, family: Family) -> usize {
        let heads = match self.num_key_value_heads {
            Setting::Absent => family.default_kv_heads(),
            Setting::Null => None,
            Setting::Is(heads) => Some(heads),
        };
        heads.unwrap_or(self.num_attention_heads)
    }

    pub(super) fn head_dim(&self, family: Family) -> Result<usize, LoadError> {
        let width = match self.head_dim {
            Setting::Absent => family.default_head_dim(),
            Setting::Null => None,
            Setting::Is(width) => Some(width),
        };
        let (hidden, heads) = (self.hidden_size, self.num_attention_heads.max(1));
        match width {
            Some(width) => Ok(width),
            None if hidden.is_multiple_of(heads) => Ok(hidden / heads),
            None => refused("head_dim", "absent", "hidden_size divided by num_attention_heads"),
        }
    }

    /// Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (transformers
    /// 4).
    ///
    /// If a file has both, `rope_scaling` wins, as in transformers 5.
    pub(super) fn rope(&self) -> Result<Rope, LoadError> {
        let none = Map::new();
        let scaling = self.rope_scaling.as_ref().filter(|fields| !fields.is_empty());
        let (fields, name) = match (scaling, &self.rope_parameters) {
            (Some(scaling), _) => (scaling, "rope_scaling"),
            (None, Some(parameters)) => (parameters, "rope_parameters"),
            (None, None) => (&none, "rope_scaling"),
        };
        let context = self.max_position_embeddings as f64;
        let parameters = Parameters { fields, name, context };
        parameters.rope(
            self.rope_theta,
            self.original_max_position_embeddings,
            self.partial_rotary_factor,
        )
    }
}

/// Field that distinguishes absence (the family's default) from null (no value).
#[derive(Clone, Copy, Debug, Default)]
enum Setting<T> {
    #[default]
    Absent,
    Null,
    Is(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Setting<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Option::deserialize(deserializer)?;
        Ok(value.map_or(Self::Null, Self::Is))
    }
}
