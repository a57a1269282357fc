//! Types of tensor elements and their sizes in bytes.

use std::fmt;

/// Type of a tensor's elements.
///
/// The quantized types are those of ggml: the elements of a block share their scales, and a tensor
/// is cut only between blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the formats")]
#[expect(non_camel_case_types, reason = "as above")]
#[non_exhaustive]
pub enum Dtype {
    F64,
    F32,
    F16,
    BF16,
    F8_E4M3,
    F8_E5M2,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
}

/// Largest `ggml_type` number of a type in [`Dtype`].
const LAST_GGML_TYPE: u32 = 39;

impl Dtype {
    /// Returns the number of elements in a block and the size of the block in bytes.
    ///
    /// ```
    /// use nsbridge_checkpoint::Dtype;
    ///
    /// assert_eq!(Dtype::BF16.block(), (1, 2));
    /// assert_eq!(Dtype::Q4_K.block(), (256, 144));
    /// ```
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::F64 | Self::I64 | Self::U64 => (1, 8),
            Self::F32 | Self::I32 | Self::U32 => (1, 4),
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => (1, 2),
            Self::F8_E4M3 | Self::F8_E5M2 | Self::I8 | Self::U8 | Self::Bool => (1, 1),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q8_1 => (32, 36),
            Self::Q2_K => (256, 84),
            Self::Q3_K => (256, 110),
            Self::Q4_K => (256, 144),
            Self::Q5_K => (256, 176),
            Self::Q6_K => (256, 210),
            Self::Q8_K => (256, 292),
            Self::IQ1_S => (256, 50),
            Self::IQ1_M => (256, 56),
            Self::IQ2_XXS => (256, 66),
            Self::IQ2_XS => (256, 74),
            Self::IQ2_S => (256, 82),
            Self::IQ3_XXS => (256, 98),
            Self::IQ3_S => (256, 110),
            Self::IQ4_NL => (32, 18),
            Self::IQ4_XS => (256, 136),
            Self::TQ1_0 => (256, 54),
            Self::TQ2_0 => (256, 66),
            Self::MXFP4 => (32, 17),
        }
    }

    /// Returns the size in bytes of this many consecutive elements; `None` if they do not fill
    /// whole blocks.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        let (count, bytes) = self.block();
        let blocks = elements.is_multiple_of(count as u64).then(|| elements / count as u64)?;
        blocks.checked_mul(bytes as u64)
    }

    /// Returns the size in bytes of a tensor of this shape; `None` if its rows do not fill whole
    /// blocks, or if the size overflows.
    pub(crate) fn bytes_of_shape(self, shape: &[usize]) -> Option<u64> {
        // Sizes of the parts of an empty tensor are computed too, so they must not overflow either.
        let most = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d.max(1) as u64))?;
        most.checked_mul(self.block().1 as u64)?;
        self.bytes_of(shape.last().map_or(1, |&row| row as u64))?;
        self.bytes_of(shape.iter().map(|&d| d as u64).product())
    }

    /// Returns the alignment in bytes at which the buffer can be read as numbers.
    pub(crate) fn align(self) -> usize {
        match self.block() {
            (1, bytes) => bytes,
            // Kernels read blocks as bytes. The alignment of a cache line keeps the first block
            // within one line.
            _ => 64,
        }
    }

    pub(crate) fn from_safetensors(dtype: safetensors::Dtype) -> Option<Self> {
        use safetensors::Dtype as Theirs;
        Some(match dtype {
            Theirs::F64 => Self::F64,
            Theirs::F32 => Self::F32,
            Theirs::F16 => Self::F16,
            Theirs::BF16 => Self::BF16,
            Theirs::F8_E4M3 => Self::F8_E4M3,
            Theirs::F8_E5M2 => Self::F8_E5M2,
            Theirs::I64 => Self::I64,
            Theirs::I32 => Self::I32,
            Theirs::I16 => Self::I16,
            Theirs::I8 => Self::I8,
            Theirs::U64 => Self::U64,
            Theirs::U32 => Self::U32,
            Theirs::U16 => Self::U16,
            Theirs::U8 => Self::U8,
            Theirs::BOOL => Self::Bool,
            _ => return None,
        })
    }

    /// Returns the type number in GGUF files, which is that of `ggml_type` in ggml.h.
    pub fn ggml_type(self) -> Option<u32> {
        (0..=LAST_GGML_TYPE).find(|number| Self::from_ggml(*number) == Some(self))
    }

    pub(crate) fn from_ggml(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            9 => Self::Q8_1,
            10 => Self::Q2_K,
            11 => Self::Q3_K,
            12 => Self::Q4_K,
            13 => Self::Q5_K,
            14 => Self::Q6_K,
            15 => Self::Q8_K,
            16 => Self::IQ2_XXS,
            17 => Self::IQ2_XS,
            18 => Self::IQ3_XXS,
            19 => Self::IQ1_S,
            20 => Self::IQ4_NL,
            21 => Self::IQ3_S,
            22 => Self::IQ2_S,
            23 => Self::IQ4_XS,
            24 => Self::I8,
            25 => Self::I16,
            26 => Self::I32,
            27 => Self::I64,
            28 => Self::F64,
            29 => Self::IQ1_M,
            30 => Self::BF16,
            34 => Self::TQ1_0,
            35 => Self::TQ2_0,
            LAST_GGML_TYPE => Self::MXFP4,
            _ => return None,
        })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
