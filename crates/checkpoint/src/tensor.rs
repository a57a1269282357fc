//! What a tensor is and where it lies.

use std::ops::Range;

use crate::dtype::Dtype;

/// What a tensor is and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// What its elements are.
    pub dtype: Dtype,
    /// Its dimensions, slowest first.
    pub shape: Vec<usize>,
    pub(crate) file: usize,
    pub(crate) range: Range<u64>,
}

impl TensorInfo {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The number of its elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }
}
