//! Destination of a product's numbers.

use crate::simd::Lanes;

/// Epilogue of a product, called with 16 outputs of one row of activations.
pub(crate) trait Store {
    /// Stores one tile's outputs for a row. It must be always inlined: see
    /// [`Work`](crate::simd::Work).
    fn store(&mut self, row: usize, tile: usize, lanes: &Lanes);
}
