//! Collective operations between the ranks of a model.
//!
//! All ranks make the same calls in the same order. A sum over the ranks is a pairwise tree that
//! continues the tree over each rank's segments, so the bits equal those of one rank with all
//! segments. NCCL sums in an order of its own; ranks on GPUs use it instead.

mod threads;

use std::fmt;

pub use self::threads::{Patience, RankGroup, RankHandle};

/// Communicator of one rank.
pub trait Communicator: fmt::Debug + Send {
    /// Returns the number of ranks.
    fn ranks(&self) -> usize;

    /// Replaces the first `len` numbers by their sums over all ranks.
    ///
    /// # Errors
    ///
    /// Returns an error if a rank is lost.
    fn all_reduce(&mut self, numbers: &mut Vec<f32>, len: usize) -> Result<(), RankLost>;

    /// Shows the first `len` numbers of each rank to rank 0, in the order of the ranks.
    ///
    /// # Errors
    ///
    /// Returns an error if a rank is lost.
    fn gather(
        &mut self,
        numbers: &mut Vec<f32>,
        len: usize,
        show: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), RankLost>;
}

/// Communicator of a single rank. It exchanges nothing, but counts its sums as a measure of
/// progress.
#[derive(Debug)]
pub struct SingleRank(RankHandle<Vec<f32>>);

impl SingleRank {
    /// Wraps the handle of a group's only rank.
    pub fn new(handle: RankHandle<Vec<f32>>) -> Self {
        Self(handle)
    }
}

impl Communicator for SingleRank {
    fn ranks(&self) -> usize {
        1
    }

    fn all_reduce(&mut self, _: &mut Vec<f32>, _: usize) -> Result<(), RankLost> {
        self.0.arrive();
        Ok(())
    }

    fn gather(
        &mut self,
        numbers: &mut Vec<f32>,
        len: usize,
        show: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), RankLost> {
        show(0, &numbers[..len]);
        Ok(())
    }
}

/// Error after a rank is lost. It ends the model, since no other rank can compute its part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RankLost(String);
