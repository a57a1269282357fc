//! Backend that a model runs on.

use super::arithmetic::Arithmetic;
use super::gpu::GpuDevices;
use crate::error::LoadError;
use nsbridge_kernels::Format;

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
    /// model's tensors, and if they can read each other's memory; candle's if not.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is unknown, if the GPU does not exist, if candle would have to
    /// give exact results, or if the worker was built without the required features.
    pub fn named(
        name: &str,
        ranks: usize,
        arithmetic: Arithmetic,
        formats: &[Format],
    ) -> Result<Self, LoadError> {
        if name == "cpu" {
            return Ok(Self::Cpu);
        }
        let is_emulated = cfg!(feature = "emulator") && name == "emulator";
        let numbers = if is_emulated { Vec::new() } else { gpus(name, ranks)? };
        let without = formats.iter().find(|format| !GpuDevices::has_kernels_for(**format));
        let why = match without {
            Some(format) => format!("there are no kernels for {format}"),
            None => match Self::with_own_kernels(&numbers, ranks, arithmetic)? {
                Some(own) => return Ok(own),
                None => "the GPUs cannot read each other's memory".to_owned(),
            },
        };
        if is_emulated || arithmetic == Arithmetic::Portable {
            let exact = match arithmetic {
                Arithmetic::Portable => " and the option arithmetic is portable",
                Arithmetic::Native => "",
            };
            return Err(LoadError::Worker(format!(
                "{OPTION} is {name}{exact}, but {why}; change the options, or the model's format \
                 with `nsbridge model quantize`"
            )));
        }
        if numbers.len() > 1 && !cfg!(feature = "nccl") {
            return Err(needs(name, "the feature nccl, which ranks on GPUs of their own need"));
        }
        #[cfg(feature = "candle")]
        return CandleDevices::gpus(numbers).map(Self::Candle).inspect(|_| {
            tracing::warn!("{OPTION} is {name}: {why}, so that candle computes");
        });
        #[cfg(not(feature = "candle"))]
        Err(needs(name, &format!("candle, which {} GPUs need", numbers.len())))
    }

    /// Opens the GPUs with these numbers for this engine's kernels, or without numbers the emulator.
    /// Returns `None` if ranks could not read each other's memory.
    fn with_own_kernels(
        numbers: &[usize],
        ranks: usize,
        arithmetic: Arithmetic,
    ) -> Result<Option<Self>, LoadError> {
        #[cfg(feature = "emulator")]
        if numbers.is_empty() {
            return Ok(Some(Self::Gpu(GpuDevices::emulators(ranks, arithmetic)?)));
        }
        #[cfg(feature = "cuda")]
        if let Some(last) = numbers.len().checked_sub(1) {
            let of_ranks: Vec<_> = (0..ranks.max(1)).map(|rank| numbers[rank.min(last)]).collect();
            return Ok(GpuDevices::cuda(&of_ranks, arithmetic)?.map(Self::Gpu));
        }
        let _ = (numbers, ranks, arithmetic);
        Ok(None)
    }

    /// Returns true if the bits of the results are those of [`Backend::Cpu`].
    pub(crate) fn is_exact(&self) -> bool {
        match self {
            Self::Cpu => true,
            Self::Gpu(on) => on.arithmetic() == Arithmetic::Portable,
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

    #[cfg(feature = "emulator")]
    #[test]
    fn a_format_without_kernels_is_not_exact() {
        use super::{Arithmetic, Backend};
        use nsbridge_kernels::Format;

        let exact =
            |formats: &[Format]| Backend::named("emulator", 1, Arithmetic::Portable, formats);
        assert!(exact(&[Format::Q8_0, Format::Q6K]).is_ok());
        let why = exact(&[Format::Q8_0, Format::Q5K]).unwrap_err().to_string();
        assert!(why.contains("arithmetic is portable, but there are no kernels for Q5_K"), "{why}");
    }

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
