//! Backend that a model runs on.

use super::gpu::{Arithmetic, GpuDevices};
use crate::{Format, LoadError};

#[cfg(feature = "candle")]
pub use super::device::CandleDevices;

/// Name of the device option in error messages.
pub(super) const OPTION: &str = "the option device";

/// Backend that a model runs on.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Backend {
    /// CPU, with this engine's own kernels.
    #[default]
    Cpu,
    /// GPUs, with this engine's own kernels.
    Gpu(GpuDevices),
    /// candle, on any of its devices. Weights are floats or the checkpoint's blocks, and the bits
    /// depend on the device and on the number of ranks.
    Candle(CandleDevices),
}

impl Backend {
    /// Returns the backend of this name: `cpu`; `cuda` for one GPU per rank; `cuda:N` for all ranks
    /// on GPU N. GPUs run this engine's kernels if there are kernels for `formats`, those of the
    /// model's tensors, and candle's if not.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is unknown, if the GPU does not exist, or if the worker was
    /// built without the required features.
    pub fn named(
        name: &str,
        ranks: usize,
        arithmetic: Arithmetic,
        formats: &[Format],
    ) -> Result<Self, LoadError> {
        let own = formats.iter().all(|format| GpuDevices::has_kernels_for(*format));
        match name {
            "cpu" => return Ok(Self::Cpu),
            #[cfg(feature = "emulator")]
            "emulator" if own => return GpuDevices::emulators(ranks, arithmetic).map(Self::Gpu),
            _ => {}
        }
        let numbers = gpus(name, ranks)?;
        #[cfg(feature = "cuda")]
        if own {
            let last = numbers.len() - 1;
            let of_ranks: Vec<_> = (0..ranks.max(1)).map(|rank| numbers[rank.min(last)]).collect();
            return GpuDevices::cuda(&of_ranks, arithmetic).map(Self::Gpu);
        }
        let _ = (own, arithmetic);
        if numbers.len() > 1 && !cfg!(feature = "nccl") {
            return Err(needs(name, "the feature nccl, which ranks on GPUs of their own need"));
        }
        #[cfg(feature = "candle")]
        return CandleDevices::gpus(numbers).map(Self::Candle);
        #[cfg(not(feature = "candle"))]
        Err(needs(name, &format!("candle, which {} GPUs need", numbers.len())))
    }

    /// Returns true if the bits of the results are those of [`Backend::Cpu`].
    pub(crate) fn is_exact(&self) -> bool {
        match self {
            Self::Cpu => true,
            Self::Gpu(on) => on.arithmetic() == Arithmetic::Exact,
            Self::Candle(_) => false,
        }
    }
}

/// Devices of candle; a build without the feature `candle` has none.
#[cfg(not(feature = "candle"))]
#[derive(Clone, Debug)]
pub enum CandleDevices {}

#[cfg(not(feature = "candle"))]
impl CandleDevices {
    /// Returns the free memory of all devices together, in bytes.
    pub(crate) fn free(&self) -> Option<u64> {
        match *self {}
    }
}

/// Returns the numbers of the GPUs of `cuda`, one for each rank, or of `cuda:N`, which puts all
/// ranks on that one.
///
/// # Errors
///
/// Returns an error if the name is unknown, or if the worker was built without the required
/// features.
fn gpus(name: &str, ranks: usize) -> Result<Vec<usize>, LoadError> {
    let numbers: Vec<usize> = match name.strip_prefix("cuda") {
        Some("") => (0..ranks.max(1)).collect(),
        Some(number) => {
            let number = number.strip_prefix(':').and_then(|number| number.parse().ok());
            vec![number.ok_or_else(|| unknown(name))?]
        }
        None => return Err(unknown(name)),
    };
    if !cfg!(feature = "cuda") {
        return Err(needs(name, "the feature cuda"));
    }
    Ok(numbers)
}

fn unknown(name: &str) -> LoadError {
    LoadError::unsupported(OPTION, name.to_owned(), "cpu, cuda or cuda:N")
}

fn needs(name: &str, what: &str) -> LoadError {
    LoadError::Worker(format!(
        "{OPTION} is {name}, and this worker was built without {what} (docs/gpu.md says how it is)"
    ))
}

#[cfg(test)]
mod tests {
    use super::gpus;

    #[test]
    fn names_of_devices_are_held_to_their_form() {
        for name in ["gpu", "cuda0", "cuda:", "cuda:-1", "cuda:x", "CUDA"] {
            let why = gpus(name, 1).unwrap_err().to_string();
            assert!(why.contains("cpu, cuda or cuda:N"), "{name}: {why}");
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_worker_without_cuda_says_so() {
        let why = gpus("cuda:1", 2).unwrap_err().to_string();
        assert_eq!(
            why,
            "the option device is cuda:1, and this worker was built without the feature cuda \
             (docs/gpu.md says how it is)"
        );
    }
}
