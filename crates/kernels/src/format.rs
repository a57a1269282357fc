//! Number formats of weights.

use std::fmt;

use crate::rowwise::BLOCK;
use crate::simd::LANES;
use crate::{blocks32, kquants};

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
    /// GGUF's Q8_1: as Q8_0, with a sum that is not needed. In memory it is Q8_0.
    Q8_1,
    /// GGUF's Q4_0: blocks of 32 four-bit integers with an f16 scale, multiplied with activations
    /// in blocks of 32 eight-bit integers.
    Q4_0,
    /// GGUF's Q4_1: as Q4_0, with a least value.
    Q4_1,
    /// GGUF's Q5_0: as Q4_0, with five-bit integers.
    Q5_0,
    /// GGUF's Q5_1: as Q4_1, with five-bit integers.
    Q5_1,
    /// GGUF's IQ4_NL: as Q4_0, with places in a table of sixteen levels.
    Iq4Nl,
    /// GGUF's MXFP4: as Q4_0, with four-bit floats and a power of two as the scale.
    Mxfp4,
    /// GGUF's Q2_K: blocks of 256 two-bit integers, each 16 with a scale and a least value,
    /// multiplied with activations in blocks of 256 eight-bit integers.
    Q2K,
    /// GGUF's Q3_K: blocks of 256 three-bit integers, each 16 with a scale, multiplied with
    /// activations in blocks of 256 eight-bit integers.
    Q3K,
    /// GGUF's Q4_K: blocks of 256 four-bit integers, each 32 with a scale and a least value,
    /// multiplied with activations in blocks of 256 eight-bit integers.
    Q4K,
    /// GGUF's Q5_K: as Q4_K, with five-bit integers.
    Q5K,
    /// GGUF's Q6_K: blocks of 256 six-bit integers, each 16 with a scale, multiplied with
    /// activations in blocks of 256 eight-bit integers.
    Q6K,
    /// GGUF's IQ4_XS: blocks of 256 places in the table of IQ4_NL, each 32 with a scale, multiplied
    /// with activations in blocks of 256 eight-bit integers.
    Iq4Xs,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 17] = [
        Self::F32,
        Self::Bf16,
        Self::F16,
        Self::Q8_0,
        Self::Q8_1,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Iq4Nl,
        Self::Mxfp4,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Xs,
    ];

    /// Returns the format that weights of this format have in memory. It holds each of them exactly.
    ///
    /// A weight of Q8_1 is that of a Q8_0 block without its sum.
    pub fn in_memory(self) -> Self {
        match self {
            Self::Q8_1 => Self::Q8_0,
            other => other,
        }
    }

    /// Returns the bytes of a weight in memory, scales included.
    pub fn width(self) -> f64 {
        let of_32 = |size: usize| size as f64 / (LANES * BLOCK) as f64;
        let of_256 = |size: usize| size as f64 / (LANES * kquants::BLOCK) as f64;
        match self {
            Self::F32 => 4.0,
            Self::Bf16 | Self::F16 => 2.0,
            Self::Q8_0 | Self::Q8_1 => 34.0 / 32.0,
            Self::Q4_0 => of_32(size_of::<blocks32::Q4_0>()),
            Self::Q4_1 => of_32(size_of::<blocks32::Q4_1>()),
            Self::Q5_0 => of_32(size_of::<blocks32::Q5_0>()),
            Self::Q5_1 => of_32(size_of::<blocks32::Q5_1>()),
            Self::Iq4Nl => of_32(size_of::<blocks32::Iq4Nl>()),
            Self::Mxfp4 => of_32(size_of::<blocks32::Mxfp4>()),
            Self::Q2K => of_256(size_of::<kquants::Q2>()),
            Self::Q3K => of_256(size_of::<kquants::Q3>()),
            Self::Q4K => of_256(size_of::<kquants::Q4>()),
            Self::Q5K => of_256(size_of::<kquants::Q5>()),
            Self::Q6K => of_256(size_of::<kquants::Q6>()),
            Self::Iq4Xs => of_256(size_of::<kquants::Iq4Xs>()),
        }
    }

    /// Returns the number of columns that cannot be separated: the block length.
    pub fn unit(self) -> usize {
        match self {
            // As for Bf16, so that the bits agree.
            Self::F32 | Self::Bf16 | Self::F16 => 2,
            other => other.block_in_file().0,
        }
    }

    /// Returns the weights and the bytes of a block in a file.
    pub fn block_in_file(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::Bf16 | Self::F16 => (1, 2),
            Self::Q8_0 => (BLOCK, 34),
            Self::Q8_1 => (BLOCK, 36),
            Self::Q4_0 | Self::Iq4Nl => (BLOCK, 18),
            Self::Q4_1 => (BLOCK, 20),
            Self::Q5_0 => (BLOCK, 22),
            Self::Q5_1 => (BLOCK, 24),
            Self::Mxfp4 => (BLOCK, 17),
            Self::Q2K => (kquants::BLOCK, 84),
            Self::Q3K => (kquants::BLOCK, 110),
            Self::Q4K => (kquants::BLOCK, 144),
            Self::Q5K => (kquants::BLOCK, 176),
            Self::Q6K => (kquants::BLOCK, 210),
            Self::Iq4Xs => (kquants::BLOCK, 136),
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
            Self::Q8_1 => "Q8_1",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Iq4Nl => "IQ4_NL",
            Self::Mxfp4 => "MXFP4",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Xs => "IQ4_XS",
        })
    }
}
