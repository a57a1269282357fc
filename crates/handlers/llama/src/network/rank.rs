//! A rank: what computes one part of the network.

use std::fmt;

use super::plan::Step;
use crate::comm::Lost;

/// One of them, whatever it computes on.
pub(super) trait Rank: fmt::Debug + Send {
    /// Runs a step; rank 0 then has the [`logits`](Self::logits).
    fn run(&mut self, step: &Step) -> Result<(), Lost>;

    /// What the last step wanted, from all ranks.
    fn logits(&self, step: &Step) -> Rows<'_>;

    /// What decides the bits beside the files.
    fn arithmetic(&self) -> String;
}

/// Rows of numbers that begin `stride` apart.
pub(super) struct Rows<'a> {
    pub(super) numbers: &'a [f32],
    pub(super) stride: usize,
}
