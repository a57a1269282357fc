//! How the ranks of a model, each of which has a part of every matrix, put together what they
//! computed.
//!
//! All ranks make the same calls in the same order. A sum over the ranks is a pairwise tree, which
//! continues the tree over the segments that each rank has: the bits are those of one rank that has
//! them all. NCCL, which adds up in an order of its own, has its place elsewhere, among the devices.

mod threads;

use std::fmt;

use nsbridge_handler::Error;

pub(crate) use self::threads::{Meeting, Member, Waiting};

/// One rank's side.
pub(crate) trait Comm: fmt::Debug + Send {
    /// How many there are.
    fn ranks(&self) -> usize;

    /// Makes the first `len` numbers the sums over all ranks.
    fn all_reduce(&mut self, numbers: &mut Vec<f32>, len: usize) -> Result<(), Lost>;

    /// Shows rank 0 the first `len` numbers of each rank, in their order.
    fn gather(
        &mut self,
        numbers: &mut Vec<f32>,
        len: usize,
        show: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Lost>;
}

/// A rank that has everything. It meets nobody, and yet counts how far it is.
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

/// A rank is gone, and the model with it: what it was to compute, nobody else can.
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
