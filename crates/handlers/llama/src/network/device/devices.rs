//! Devices on which ranks compute.

use candle_core::{DType, Device};

use crate::error::LoadError;
use nsbridge_kernels::Format;

/// Devices of a model's ranks, and the dtype of their computation.
#[derive(Clone, Debug)]
pub struct CandleDevices {
    /// Device of rank i; ranks beyond the list share the last device.
    devices: Vec<Device>,
    /// Dtype of activations and of float weights; `None` for that of the checkpoint.
    dtype: Option<DType>,
}

impl CandleDevices {
    /// Puts all ranks on one device, in the checkpoint's own dtype.
    pub fn one(device: Device) -> Self {
        Self { devices: vec![device], dtype: None }
    }

    /// Replaces the dtype of the computation.
    #[must_use]
    pub fn with_dtype(self, dtype: DType) -> Self {
        Self { dtype: Some(dtype), ..self }
    }

    /// Opens the GPUs with these numbers, one for each rank.
    ///
    /// # Errors
    ///
    /// Returns an error that names a GPU that cannot be used.
    pub(in crate::network) fn gpus(numbers: Vec<usize>) -> Result<Self, LoadError> {
        let devices = numbers.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { devices, dtype: None })
    }

    /// Returns the device of a rank.
    pub(super) fn device(&self, rank: usize) -> &Device {
        &self.devices[rank.min(self.devices.len() - 1)]
    }

    /// Returns true if all ranks share a device, so that they can exchange tensors without a copy.
    pub(super) fn is_one(&self) -> bool {
        self.devices.iter().all(|device| device.same_device(&self.devices[0]))
    }

    /// Returns the dtype of the computation, for weights whose coarsest format is `coarsest`.
    pub(super) fn dtype(&self, coarsest: Format) -> DType {
        self.dtype.unwrap_or(match coarsest {
            Format::Bf16 => DType::BF16,
            Format::F16 => DType::F16,
            // candle's quantized kernels take and return f32.
            _ => DType::F32,
        })
    }

    /// Returns the free memory of all devices together, in bytes, if the devices report it.
    pub(crate) fn free(&self) -> Option<u64> {
        self.devices.iter().map(free).sum()
    }
}

fn open(number: usize) -> Result<Device, LoadError> {
    // One stream for the device: ranks that share it exchange tensors, whose kernels must run in
    // the order in which they were enqueued. candle's `new_cuda` has a stream for each thread.
    let device = Device::new_cuda_with_stream(number).map_err(|error| {
        let why = super::first_line(&error);
        LoadError::Worker(format!(
            "the option device names GPU {number}, which cannot be used: {why}"
        ))
    })?;
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = &device {
        #[expect(unsafe_code, reason = "candle leaves the order of streams to us")]
        // SAFETY: all work on the device is enqueued on its one stream.
        unsafe {
            cuda.disable_event_tracking();
        }
        // A device without a pool has nothing to keep.
        let _ = nsbridge_gpu::cuda::keep_memory(cuda.cuda_stream().context());
    }
    Ok(device)
}

fn free(device: &Device) -> Option<u64> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = device {
        let (free, _) = cuda.cuda_stream().context().mem_get_info().ok()?;
        return u64::try_from(free).ok();
    }
    let _ = device;
    None
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::CandleDevices;
    use nsbridge_kernels::Format;

    #[test]
    fn what_is_computed_in_is_what_the_checkpoint_has() {
        let on = CandleDevices::one(Device::Cpu);
        assert_eq!(on.dtype(Format::Bf16), DType::BF16);
        assert_eq!(on.dtype(Format::Q8_0), DType::F32);
        assert_eq!(on.with_dtype(DType::F32).dtype(Format::F16), DType::F32);
    }
}
