//! Collective operations between the ranks of a model.
//!
//! All ranks make the same calls in the same order. A sum over the ranks is a pairwise tree that
//! continues the tree over each rank's segments, so the bits equal those of one rank with all
//! segments. NCCL sums in its own order, and is used in the device code instead.

mod threads;

use std::fmt;

use nsbridge_handler::Error;

pub(crate) use self::threads::{Meeting, Member, Waiting};

/// Communicator of one rank.
pub(crate) trait Comm: fmt::Debug + Send {
    /// Returns the number of ranks.
    fn ranks(&self) -> usize;

    /// Replaces the first `len` numbers by their sums over all ranks.
    fn all_reduce(&mut self, numbers: &mut Vec<f32>, len: usize) -> Result<(), Lost>;

    /// Shows the first `len` numbers of each rank to rank 0, in the order of the ranks.
    fn gather(
        &mut self,
        numbers: &mut Vec<f32>,
        len: usize,
        show: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Lost>;
}

/// Communicator of a single rank. It exchanges nothing, but counts its sums as a measure of
/// progress.
#[derive(Debug)]
pub(crate) struct Single(pub(crate) Member<Vec<f32>>);

impl Comm for Single {
    fn ranks(&self) -> usize {
        1
    }

    fn all_reduce(&mut self, _: &mut Vec<f32>, _: usize) -> Result<(), Lost> {
        self.0.pass();
        Ok(())
    }

    fn gather(
        &mut self,
        numbers: &mut Vec<f32>,
        len: usize,
        show: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Lost> {
        show(0, &numbers[..len]);
        Ok(())
    }
}

/// Error after a rank is lost. It ends the model, since no other rank can compute its part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lost(String);

#[cfg(test)]
impl Lost {
    pub(crate) fn of(why: &str) -> Self {
        Self(why.to_owned())
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Lost> for Error {
    fn from(Lost(why): Lost) -> Self {
        Self::fatal(why)
    }
}
