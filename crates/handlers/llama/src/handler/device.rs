//! Selection of the device by the configuration, and the defaults that depend on it.

use nsbridge_checkpoint::TensorInfo;
use nsbridge_kernels::attention::PAGE;

use crate::formats::format_of_tensor;
use crate::options::Options;
use crate::{Arithmetic, Backend, Format, GpuDevices, LoadError, Memory, Setup};

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
        Backend::named(&self.name, ranks, self.arithmetic, &formats(tensors)?)
    }

    /// Opens the device for a draft: that of the target, where its kernels have the formats.
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
            Backend::Gpu(on) if known && ranks <= on.count() => Ok(target.clone()),
            // Tokens of a reply are the target's, whatever the bits of the draft.
            _ if !known => Backend::named(&self.name, ranks, Arithmetic::Bf16, &formats),
            _ => Backend::named(&self.name, ranks, self.arithmetic, &formats),
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

/// Returns the default number of KV-cache blocks of the target and of the draft: on a GPU, as many of
/// those of the setup as fit beside the weights, but enough for `one` request.
pub(super) fn blocks(setup: &Setup, memory: &Memory, draft: Option<&Memory>, one: usize) -> usize {
    let Backend::Gpu(on) = &setup.device else { return setup.blocks };
    let Some(free) = on.free() else { return setup.blocks };
    blocks_in(free, [Some(memory), draft], setup.blocks, one)
}

/// Returns the number of blocks of each of the models that fit into this many bytes.
fn blocks_in(free: u64, models: [Option<&Memory>; 2], most: usize, one: usize) -> usize {
    let sum = |of: fn(&Memory) -> u64| models.iter().flatten().map(|own| of(own)).sum::<u64>();
    let room = (free - LEFT.min(free / 10)).saturating_sub(sum(|own| own.weights));
    let fit = room / sum(|own| own.position).max(1) / PAGE as u64;
    usize::try_from(fit).unwrap_or(usize::MAX).clamp(one.min(most), most)
}

#[cfg(test)]
mod tests {
    use super::blocks_in;
    use crate::Memory;

    #[test]
    fn a_draft_has_as_many_positions_as_its_target() {
        let gib = |many: u64| many << 30;
        let memory = |weights, position| Memory { weights, position, positions: 0 };
        // 80 GiB, of which 3 are left: 37 GiB are for positions of 320 KiB, and of 32 KiB beside.
        let (target, draft) = (memory(gib(38), 320 << 10), memory(gib(2), 32 << 10));
        let both = [Some(&target), Some(&draft)];
        assert_eq!(blocks_in(gib(80), both, 100_000, 256), 37 * (1 << 30) / (352 << 10) / 32);
        assert_eq!(blocks_in(gib(80), [Some(&target), None], 100_000, 256), 3993);
        assert_eq!(blocks_in(gib(80), both, 1000, 256), 1000);
        assert_eq!(blocks_in(gib(20), both, 100_000, 256), 256);
    }
}
