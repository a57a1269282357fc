//! Tensors as the kernels read them.

use std::borrow::Cow;

use nsbridge_checkpoint::{Dtype, Weight};
use nsbridge_kernels::Format;
use nsbridge_kernels::matrix::Source;

use crate::formats::format_of;

/// Tensor, or a rank's part of one, in a format of the kernels.
#[derive(Debug)]
pub(crate) struct Stored {
    name: String,
    numbers: Numbers,
}

#[derive(Debug)]
enum Numbers {
    /// Bytes of the file.
    Kept(Weight),
    /// Bytes of f32.
    Widened { shape: Vec<usize>, bytes: Vec<u8> },
}

impl Stored {
    pub(super) fn new(name: &str, weight: Weight) -> Self {
        Self { name: name.to_owned(), numbers: Numbers::Kept(weight) }
    }

    /// Wraps the bytes of f32 numbers of this shape.
    pub(super) fn widened(name: &str, (shape, bytes): (Vec<usize>, Vec<u8>)) -> Self {
        Self { name: name.to_owned(), numbers: Numbers::Widened { shape, bytes } }
    }

    /// Returns the type of the [bytes](Self::bytes).
    pub(crate) fn dtype(&self) -> Dtype {
        match &self.numbers {
            Numbers::Kept(weight) => weight.dtype(),
            Numbers::Widened { .. } => Dtype::F32,
        }
    }

    /// Returns the dimensions, slowest first.
    #[cfg_attr(
        not(feature = "candle"),
        expect(dead_code, reason = "only candle's tensors have shapes")
    )]
    pub(crate) fn shape(&self) -> &[usize] {
        match &self.numbers {
            Numbers::Kept(weight) => weight.shape(),
            Numbers::Widened { shape, .. } => shape,
        }
    }

    /// Returns the bytes without gaps.
    pub(crate) fn bytes(&self) -> Cow<'_, [u8]> {
        match &self.numbers {
            Numbers::Kept(weight) => weight.contiguous(),
            Numbers::Widened { bytes, .. } => Cow::Borrowed(bytes),
        }
    }

    /// Returns the [bytes](Self::bytes) as rows.
    pub(crate) fn source<'a>(&'a self, bytes: &'a [u8]) -> Source<'a> {
        // Only tensors with a format are loaded.
        let format = format_of(self.dtype()).unwrap_or(Format::F32);
        Source { name: &self.name, format, bytes }
    }
}
