//! Mixes: the format of each tensor in a quantized model.
//!
//! Names and rules follow `llama_tensor_get_type` in llama.cpp's `src/llama-quant.cpp`.

use std::fmt;
use std::str::FromStr;

use nsbridge_checkpoint::Dtype;

use crate::config::{Config, tensors};
use crate::formats;
use nsbridge_kernels::Format;

/// Number of layers of the models that llama.cpp calls 70B. Their value projections are small and
/// serve many query heads each, so they get more bits.
const LAYERS_OF_70B: usize = 80;

/// Quantization mix of a model's matrices; vectors always stay in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mix {
    /// All in f32.
    F32,
    /// All in f16.
    F16,
    /// All in bf16.
    Bf16,
    /// All in Q8_0: blocks of 32 with eight bits.
    Q8_0,
    /// All in Q6_K: blocks of 256 with six bits.
    Q6K,
    /// Q5_K, with Q6_K for the output and for half of the value and down projections.
    Q5KM,
    /// Q4_K, with Q6_K for the output and for half of the value and down projections.
    Q4KM,
}

impl Mix {
    /// All mixes.
    pub const ALL: [Self; 7] =
        [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q6K, Self::Q5KM, Self::Q4KM];

    /// Returns the name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q6K => "q6_k",
            Self::Q5KM => "q5_k_m",
            Self::Q4KM => "q4_k_m",
        }
    }

    /// Returns the format that limits the tensor-parallel degree in this mix, and the average bytes
    /// of a weight in memory.
    pub fn kept(self, config: &Config) -> (Format, f64) {
        let kept = tensors(config).map(|(name, shape)| (self.dtype(config, &name, &shape), shape));
        formats::kept(kept)
    }

    /// Returns the mix's number in GGUF: `llama_ftype` in llama.h.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Q4KM => 15,
            Self::Q5KM => 17,
            Self::Q6K => 18,
            Self::Bf16 => 32,
        }
    }

    /// Returns the format of a tensor of this name and shape.
    pub(super) fn dtype(self, config: &Config, name: &str, shape: &[usize]) -> Dtype {
        let [_, columns] = shape else { return Dtype::F32 };
        let wanted = match self {
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::BF16,
            Self::Q8_0 => Dtype::Q8_0,
            Self::Q6K => Dtype::Q6_K,
            Self::Q5KM => mixed(Dtype::Q5_K, config, name),
            Self::Q4KM => mixed(Dtype::Q4_K, config, name),
        };
        // Columns that do not divide into blocks of 256 use blocks of 32, or none.
        let fits = |dtype: &Dtype| columns.is_multiple_of(dtype.block().0);
        [wanted, Dtype::Q8_0].into_iter().find(fits).unwrap_or(Dtype::F16)
    }
}

/// Returns the default format `most`, or one with more bits where that helps most.
fn mixed(most: Dtype, config: &Config, name: &str) -> Dtype {
    let output = if config.tied { "model.embed_tokens.weight" } else { "lm_head.weight" };
    if name == output {
        return Dtype::Q6_K;
    }
    let mut parts = name.split('.').skip(2);
    let layer = parts.next().and_then(|index| index.parse().ok());
    let Some(layer) = layer else { return most };
    let values = name.ends_with("v_proj.weight");
    if (values || name.ends_with("down_proj.weight")) && more_bits(layer, config.layers) {
        return Dtype::Q6_K;
    }
    if values
        && most == Dtype::Q4_K
        && config.layers == LAYERS_OF_70B
        && config.heads != config.kv_heads
    {
        return Dtype::Q5_K;
    }
    most
}

/// Returns true for the first and the last eighth of the layers, and every third layer between.
fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|mix| mix.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("it is none of {}", Self::ALL.map(Self::name).join(", ")))
    }
}
