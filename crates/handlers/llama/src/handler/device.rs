//! Selection of the device by the configuration, and the defaults that depend on it.

use nsbridge_checkpoint::TensorInfo;

use crate::error::LoadError;
use crate::formats::format_of_tensor;
use crate::network::{Arithmetic, Backend, GpuDevices};
use crate::options::Options;
use nsbridge_kernels::{Format, Tier};

/// Default number of requests that run concurrently, on a CPU and on a GPU.
const PLACES: [usize; 2] = [8, 64];

/// Default maximum number of tokens of a step, on a CPU and on a GPU. On a CPU, a matrix product of
/// more rows is no faster per row.
const STEP_TOKENS: [usize; 2] = [256, 2048];

/// Device that the options select.
#[derive(Clone, Debug)]
pub(super) struct DeviceChoice {
    name: String,
    arithmetic: Option<Arithmetic>,
}

impl DeviceChoice {
    pub(super) fn new(options: &Options) -> Self {
        let name = options.device.clone().unwrap_or_else(|| "cpu".to_owned());
        Self { name, arithmetic: options.arithmetic }
    }

    /// Returns the arithmetic on a CPU: without instructions for the native one, the portable one.
    pub(super) fn of_cpu(&self) -> Arithmetic {
        match self.arithmetic {
            Some(Arithmetic::Native) if Tier::best().bf16_order().is_some() => Arithmetic::Native,
            _ => Arithmetic::Portable,
        }
    }

    fn of_gpu(&self) -> Arithmetic {
        self.arithmetic.unwrap_or(Arithmetic::Native)
    }

    /// Opens the device for a model with these tensors.
    ///
    /// # Errors
    ///
    /// Returns an error if the device is unknown or cannot be used, or if a dtype is not supported.
    pub(super) fn open(&self, ranks: usize, tensors: &[TensorInfo]) -> Result<Backend, LoadError> {
        Backend::named(&self.name, ranks, self.of_gpu(), &formats(tensors)?)
    }

    /// Opens the device for a draft: that of the target, where its kernels have the formats. Only
    /// with one rank, since further ranks enqueue their work on threads of their own.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`open`](Self::open).
    pub(super) fn open_for_draft(
        &self,
        target: &Backend,
        ranks: usize,
        tensors: &[TensorInfo],
    ) -> Result<Backend, LoadError> {
        let formats = formats(tensors)?;
        let known = formats.iter().all(|format| GpuDevices::has_kernels_for(*format));
        match target {
            Backend::Gpu(_) if known && ranks == 1 => Ok(target.clone()),
            // Tokens of a reply are the target's, whatever the bits of the draft.
            _ if !known => Backend::named(&self.name, ranks, Arithmetic::Native, &formats),
            _ => Backend::named(&self.name, ranks, self.of_gpu(), &formats),
        }
    }
}

fn formats(tensors: &[TensorInfo]) -> Result<Vec<Format>, LoadError> {
    tensors.iter().map(|tensor| format_of_tensor(&tensor.name, tensor.dtype)).collect()
}

/// Returns the default number of requests that run concurrently.
pub(super) fn places(options: &Options) -> usize {
    PLACES[usize::from(is_gpu(options))]
}

/// Returns the default maximum number of tokens of a step.
pub(super) fn step_tokens(options: &Options) -> usize {
    STEP_TOKENS[usize::from(is_gpu(options))]
}

fn is_gpu(options: &Options) -> bool {
    options.device.as_ref().is_some_and(|device| device.starts_with("cuda"))
}
