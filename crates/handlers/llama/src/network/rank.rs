//! A rank: what computes one part of the network.

use std::fmt;

use super::plan::Step;
use crate::sample::Chosen;
use nsbridge_kernels::collectives::RankLost;

/// One rank of a model, on any processor.
pub(super) trait Rank: fmt::Debug + Send {
    /// Runs a step. Rank 0 has the [`logits`](Self::logits) afterwards.
    fn run(&mut self, step: &Step) -> Result<(), RankLost>;

    /// Returns the logits requested by the last step, of all ranks.
    fn logits(&self, step: &Step) -> Rows<'_>;

    /// Returns the tokens that the last step sampled. The logits are on the device then.
    fn chosen(&self) -> Option<&Chosen> {
        None
    }

    /// Copies a row of logits of the last step from the device.
    fn copy(&self, row: u32) -> Vec<f32> {
        let _ = row;
        Vec::new()
    }

    /// Returns a description of what determines the bits besides the model files.
    fn arithmetic(&self) -> String;
}

/// Rows of numbers, `stride` apart.
pub(super) struct Rows<'a> {
    pub(super) numbers: &'a [f32],
    pub(super) stride: usize,
}
