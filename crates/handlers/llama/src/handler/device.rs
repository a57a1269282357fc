//! Selection of the device by the configuration, and the defaults that depend on it.

use nsbridge_checkpoint::TensorInfo;
use nsbridge_kernels::attention::PAGE;

use crate::formats::format_of_tensor;
use crate::options::Options;
use crate::{Arithmetic, Backend, LoadError, Memory, Setup};

/// Default number of requests that run concurrently, on a CPU and on a GPU.
const PLACES: [usize; 2] = [8, 64];

/// Default maximum number of tokens of a step, on a CPU and on a GPU. On a CPU, a matrix product of
/// more rows is no faster per row.
const STEP_TOKENS: [usize; 2] = [256, 2048];

/// Bytes of a GPU's free memory that are left for the buffers of steps, at most a tenth of it.
const LEFT: u64 = 3 << 30;

/// Device that the options select.
#[derive(Clone, Debug)]
pub(super) struct DeviceChoice {
    name: String,
    arithmetic: Arithmetic,
}

impl DeviceChoice {
    pub(super) fn new(options: &Options) -> Self {
        let name = options.device.clone().unwrap_or_else(|| "cpu".to_owned());
        Self { name, arithmetic: options.arithmetic.unwrap_or_default() }
    }

    /// Opens the device for a model with these tensors.
    ///
    /// # Errors
    ///
    /// Returns an error if the device is unknown or cannot be used, or if a dtype is not supported.
    pub(super) fn open(&self, ranks: usize, tensors: &[TensorInfo]) -> Result<Backend, LoadError> {
        let formats = tensors.iter().map(|tensor| format_of_tensor(&tensor.name, tensor.dtype));
        let formats = formats.collect::<Result<Vec<_>, _>>()?;
        Backend::named(&self.name, ranks, self.arithmetic, &formats)
    }
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

/// Returns the default number of KV-cache blocks: on a GPU, as many of those of the setup as fit
/// beside the weights and a draft of `draft` bytes, but enough for `one` request.
pub(super) fn blocks(setup: &Setup, memory: &Memory, draft: u64, one: usize) -> usize {
    let Backend::Gpu(on) = &setup.device else { return setup.blocks };
    let Some(free) = on.free() else { return setup.blocks };
    let room = free - LEFT.min(free / 10);
    let room = room.saturating_sub(memory.weights).saturating_sub(draft);
    let fit = room / memory.position.max(1) / PAGE as u64;
    usize::try_from(fit).unwrap_or(usize::MAX).clamp(one.min(setup.blocks), setup.blocks)
}
