//! What the ranks of devices put together.

use candle_core::{Result as Candle, Tensor};

use super::{Failed, Result};
use crate::comm::{Lost, Member};

/// One rank's side.
#[derive(Debug)]
pub(in crate::network) enum Share {
    /// There is no other.
    Alone,
    /// The others are threads of this process, on the same device: tensors change hands as they are.
    Threads(Member<Option<Tensor>>),
}

impl Share {
    /// The sum of what all ranks have, in the order of the ranks.
    pub(super) fn sum(&mut self, own: Tensor) -> Result<Tensor> {
        match self {
            Self::Alone => Ok(own),
            Self::Threads(member) => {
                let sum = |all: &[Tensor]| {
                    let (first, others) = all.split_first().ok_or_else(nobody)?;
                    others.iter().try_fold(first.clone(), |sum, other| sum + other)
                };
                meet(member, own, sum)
            }
        }
    }

    /// What all have, side by side, for rank 0.
    pub(super) fn gather(&mut self, own: Tensor) -> Result<Option<Tensor>> {
        match self {
            Self::Alone => Ok(Some(own)),
            Self::Threads(member) => {
                let first = member.rank() == 0;
                let beside = |all: &[Tensor]| first.then(|| Tensor::cat(all, 1)).transpose();
                meet(member, own, beside)
            }
        }
    }

    /// Ends it for all.
    pub(super) fn end(&self, what: &str) -> Lost {
        match self {
            Self::Alone => Lost::of(&format!("the model {what}")),
            Self::Threads(member) => member.end(what),
        }
    }
}

fn meet<T>(
    member: &mut Member<Option<Tensor>>,
    own: Tensor,
    read: impl FnOnce(&[Tensor]) -> Candle<T>,
) -> Result<T> {
    let all = member.meet(&mut Some(own), |all, _| {
        all.iter().filter_map(|own| (*own).clone()).collect::<Vec<_>>()
    })?;
    read(&all).map_err(Failed::Device)
}

fn nobody() -> candle_core::Error {
    candle_core::Error::Msg("there is no rank".to_owned())
}
