//! Collective operations between ranks on devices.

#[cfg(feature = "nccl")]
mod nccl;

use candle_core::{Result as Candle, Tensor};

#[cfg(feature = "nccl")]
use self::nccl::Nccl;
use super::{CandleDevices, Failed, Result};
use crate::error::LoadError;
use crate::network::part::Part;
use nsbridge_kernels::collectives::{RankHandle, RankLost};

/// Tensor that ranks exchange at a rendezvous.
pub(in crate::network) type Handed = Option<Tensor>;

/// One rank's communicator.
#[derive(Debug)]
pub(super) enum Collectives {
    /// Single rank.
    Alone(RankHandle<Handed>),
    /// Ranks that are threads of this process, on the same device: they exchange tensors without a
    /// copy.
    Threads(RankHandle<Handed>),
    /// Ranks that are threads of this process, each with its own device.
    #[cfg(feature = "nccl")]
    Nccl(Box<Nccl>),
}

impl Collectives {
    /// Makes the communicator that fits the number of ranks and their devices.
    pub(super) fn new(
        on: &CandleDevices,
        part: Part,
        handle: RankHandle<Handed>,
    ) -> Result<Self, LoadError> {
        if part.of == 1 {
            return Ok(Self::Alone(handle));
        }
        if on.is_one() {
            return Ok(Self::Threads(handle));
        }
        #[cfg(feature = "nccl")]
        return Ok(Self::Nccl(Box::new(Nccl::new(handle, part, on.device(part.rank))?)));
        #[cfg(not(feature = "nccl"))]
        {
            let found = format!("{} ranks on several devices", part.of);
            Err(LoadError::unsupported("a model", found, "one device, without NCCL"))
        }
    }

    /// Begins a step, unless a rank is lost.
    pub(super) fn begin(&mut self) -> Result<()> {
        match self {
            Self::Alone(handle) => {
                handle.arrive();
                Ok(handle.check()?)
            }
            Self::Threads(handle) => Ok(handle.check()?),
            #[cfg(feature = "nccl")]
            Self::Nccl(nccl) => nccl.begin(),
        }
    }

    /// Returns the sum over all ranks.
    pub(super) fn sum(&mut self, own: Tensor) -> Result<Tensor> {
        match self {
            Self::Alone(_) => Ok(own),
            // Summed in the order of the ranks.
            Self::Threads(handle) => {
                let sum = |all: &[Tensor]| {
                    let (first, others) = all.split_first().ok_or_else(nobody)?;
                    others.iter().try_fold(first.clone(), |sum, other| sum + other)
                };
                meet(handle, own, sum)
            }
            #[cfg(feature = "nccl")]
            Self::Nccl(nccl) => nccl.sum(&own),
        }
    }

    /// Returns the tensors of all ranks side by side, on rank 0.
    pub(super) fn gather(&mut self, own: Tensor) -> Result<Option<Tensor>> {
        match self {
            Self::Alone(_) => Ok(Some(own)),
            Self::Threads(handle) => {
                let first = handle.rank() == 0;
                let beside = |all: &[Tensor]| first.then(|| Tensor::cat(all, 1)).transpose();
                meet(handle, own, beside)
            }
            #[cfg(feature = "nccl")]
            Self::Nccl(nccl) => nccl.gather(&own),
        }
    }

    /// Ends a step without a gather.
    #[cfg_attr(
        not(feature = "nccl"),
        expect(clippy::needless_pass_by_ref_mut, reason = "NCCL's side may end it all")
    )]
    pub(super) fn finish(&mut self) -> Result<()> {
        match self {
            Self::Alone(_) | Self::Threads(_) => Ok(()),
            #[cfg(feature = "nccl")]
            Self::Nccl(nccl) => nccl.finish(),
        }
    }

    /// Reports this rank as failed and ends the group.
    pub(super) fn end(&mut self, what: &str) -> RankLost {
        match self {
            Self::Alone(handle) | Self::Threads(handle) => handle.report_lost(what),
            #[cfg(feature = "nccl")]
            Self::Nccl(nccl) => nccl.end(what),
        }
    }
}

fn meet<T>(
    handle: &mut RankHandle<Handed>,
    own: Tensor,
    read: impl FnOnce(&[Tensor]) -> Candle<T>,
) -> Result<T> {
    let all = handle.exchange(&mut Some(own), |all, _| {
        all.iter().filter_map(|own| (*own).clone()).collect::<Vec<_>>()
    })?;
    read(&all).map_err(Failed::Device)
}

fn nobody() -> candle_core::Error {
    candle_core::Error::Msg("there is no rank".to_owned())
}
