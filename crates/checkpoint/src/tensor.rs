//! Description of a tensor: name, type, shape and place.

use std::ops::Range;

use crate::dtype::Dtype;

/// Type, shape and location of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name.
    pub name: String,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    pub(crate) file: usize,
    pub(crate) range: Range<u64>,
}

impl TensorInfo {
    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }
}
