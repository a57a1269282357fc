//! Number formats of weights.

use std::fmt;

use crate::kquants;
use crate::row::BLOCK;
use crate::simd::LANES;

/// Number format of weights, in a file or in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// f32, four bytes a weight.
    F32,
    /// bfloat16, two bytes a weight. The arithmetic is that of f32, bit for bit.
    Bf16,
    /// IEEE half precision, two bytes a weight, computed in f32.
    F16,
    /// GGUF's Q8_0: blocks of 32 eight-bit integers with an f16 scale, multiplied with activations
    /// in blocks of the same kind.
    Q8_0,
    /// GGUF's Q4_K: blocks of 256 four-bit integers, each 32 with a scale and a least value,
    /// multiplied with activations in blocks of 256 eight-bit integers.
    Q4K,
    /// GGUF's Q5_K: as Q4_K, with five-bit integers.
    Q5K,
    /// GGUF's Q6_K: blocks of 256 six-bit integers, each 16 with a scale, multiplied with
    /// activations in blocks of 256 eight-bit integers.
    Q6K,
}

impl Format {
    /// Returns the bytes of a weight in memory, scales included.
    pub fn width(self) -> f64 {
        let block = |size: usize| size as f64 / (LANES * kquants::BLOCK) as f64;
        match self {
            Self::F32 => 4.0,
            Self::Bf16 | Self::F16 => 2.0,
            Self::Q8_0 => 34.0 / 32.0,
            Self::Q4K => block(size_of::<kquants::Q4>()),
            Self::Q5K => block(size_of::<kquants::Q5>()),
            Self::Q6K => block(size_of::<kquants::Q6>()),
        }
    }

    /// Returns the number of columns that cannot be separated: the block length.
    pub fn unit(self) -> usize {
        match self {
            // As for Bf16, so that the bits agree.
            Self::F32 | Self::Bf16 | Self::F16 => 2,
            Self::Q8_0 => BLOCK,
            Self::Q4K | Self::Q5K | Self::Q6K => kquants::BLOCK,
        }
    }

    /// Returns the weights and the bytes of a block in a file.
    pub fn block_in_file(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::Bf16 | Self::F16 => (1, 2),
            Self::Q8_0 => (BLOCK, 34),
            Self::Q4K => (kquants::BLOCK, 144),
            Self::Q5K => (kquants::BLOCK, 176),
            Self::Q6K => (kquants::BLOCK, 210),
        }
    }
}

/// Writes the name that safetensors and GGUF files have for it.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        })
    }
}
