//! Model families and their defaults.

use super::refused;
use crate::error::LoadError;

/// Model family, named by `architectures`. The defaults are those of transformers' classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Family {
    /// Llama 2 and 3 (Touvron et al., arXiv:2302.13971).
    Llama,
    /// Mistral (Jiang et al., arXiv:2310.06825).
    Mistral,
    /// Dense Qwen2 and Qwen2.5 (arXiv:2407.10671).
    Qwen2,
    /// Dense Qwen3 (arXiv:2505.09388).
    Qwen3,
}

impl Family {
    /// Returns the family of `architectures`. A model without an output matrix, as one for
    /// embeddings may be, has a name such as `Qwen3Model`.
    pub(super) fn named(architectures: &[String]) -> Result<Self, LoadError> {
        match architectures.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["LlamaForCausalLM" | "LlamaModel"] => Ok(Self::Llama),
            ["MistralForCausalLM" | "MistralModel"] => Ok(Self::Mistral),
            ["Qwen2ForCausalLM" | "Qwen2Model"] => Ok(Self::Qwen2),
            ["Qwen3ForCausalLM" | "Qwen3Model"] => Ok(Self::Qwen3),
            _ => {
                let supported = "one of LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM \
                                 and Qwen3ForCausalLM";
                refused("architectures", format!("{architectures:?}"), supported)
            }
        }
    }

    /// Returns true if queries, keys and values always have biases, and the output has none.
    pub(super) fn always_has_qkv_bias(self) -> bool {
        self == Self::Qwen2
    }

    /// Returns true if transformers reads `attention_bias` in this family.
    pub(super) fn reads_attention_bias(self) -> bool {
        matches!(self, Self::Llama | Self::Qwen3)
    }

    pub(super) fn norms_queries_and_keys(self) -> bool {
        self == Self::Qwen3
    }

    /// Returns the default number of key/value heads; `None` for as many as query heads.
    pub(super) fn default_kv_heads(self) -> Option<usize> {
        match self {
            Self::Llama => None,
            Self::Mistral => Some(8),
            Self::Qwen2 | Self::Qwen3 => Some(32),
        }
    }

    /// Returns the default width of a head; `None` if it follows from the other fields.
    pub(super) fn default_head_dim(self) -> Option<usize> {
        (self == Self::Qwen3).then_some(128)
    }
}
