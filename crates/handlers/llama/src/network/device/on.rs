//! Where ranks compute.

use candle_core::{DType, Device};

use crate::{Format, LoadError};

/// The devices of a model's ranks, and what they compute in.
#[derive(Clone, Debug)]
pub struct On {
    /// Of the ranks in their order; where there are fewer, the last one is of all others too.
    devices: Vec<Device>,
    /// Of activations, and of weights that are floats.
    dtype: Option<DType>,
}

/// The option that says which.
const OPTION: &str = "the option device";

impl On {
    /// All ranks on one device, in the checkpoint's own dtype.
    pub fn one(device: Device) -> Self {
        Self { devices: vec![device], dtype: None }
    }

    /// The same in this dtype.
    #[must_use]
    pub fn with_dtype(self, dtype: DType) -> Self {
        Self { dtype: Some(dtype), ..self }
    }

    /// The GPUs of `cuda`, which gives each rank one of its own, or of `cuda:N`, which has all ranks
    /// on that one.
    ///
    /// # Errors
    ///
    /// Another name, a GPU that is not there, or a worker that was built without what it takes.
    pub(in crate::network) fn gpus(name: &str, ranks: usize) -> Result<Self, LoadError> {
        let numbers = match name.strip_prefix("cuda") {
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
        if numbers.len() > 1 && !cfg!(feature = "nccl") {
            return Err(needs(name, "the feature nccl, which ranks on GPUs of their own need"));
        }
        let devices = numbers.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { devices, dtype: None })
    }

    /// Where a rank computes.
    pub(super) fn device(&self, rank: usize) -> &Device {
        &self.devices[rank.min(self.devices.len() - 1)]
    }

    /// Whether all ranks are on the same device, so that tensors can change hands as they are.
    pub(super) fn is_one(&self) -> bool {
        self.devices.iter().all(|device| device.same_device(&self.devices[0]))
    }

    /// What is computed in, for weights whose coarsest format is this.
    pub(super) fn dtype(&self, coarsest: Format) -> DType {
        self.dtype.unwrap_or(match coarsest {
            Format::Bf16 => DType::BF16,
            Format::F16 => DType::F16,
            // candle's products with blocks take f32 and give it.
            _ => DType::F32,
        })
    }

    /// The bytes that nobody has taken yet on all devices together, if the devices tell.
    pub(crate) fn free(&self) -> Option<u64> {
        self.devices.iter().map(free).sum()
    }
}

fn unknown(name: &str) -> LoadError {
    LoadError::unsupported(OPTION, name.to_owned(), "cpu, cuda or cuda:N")
}

fn needs(name: &str, what: &str) -> LoadError {
    LoadError::Worker(format!(
        "{OPTION} is {name}, and this worker was built without {what} (docs/gpu.md says how it is)"
    ))
}

fn open(number: usize) -> Result<Device, LoadError> {
    // One stream: what ranks on the same device hand each other is computed in the order in which it
    // was asked for. candle's `new_cuda` has a stream a thread.
    let device = Device::new_cuda_with_stream(number).map_err(|error| {
        let why = super::first_line(&error);
        LoadError::Worker(format!("{OPTION} names GPU {number}, which cannot be used: {why}"))
    })?;
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = &device {
        #[expect(unsafe_code, reason = "candle leaves the order of streams to us")]
        // SAFETY: everything on the device is asked for on its one stream.
        unsafe {
            cuda.disable_event_tracking();
        }
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

    use super::On;
    use crate::Format;

    #[test]
    fn what_is_computed_in_is_what_the_checkpoint_has() {
        let on = On::one(Device::Cpu);
        assert_eq!(on.dtype(Format::Bf16), DType::BF16);
        assert_eq!(on.dtype(Format::Q8_0), DType::F32);
        assert_eq!(on.with_dtype(DType::F32).dtype(Format::F16), DType::F32);
    }

    #[test]
    fn names_of_devices_are_held_to_their_form() {
        for name in ["gpu", "cuda0", "cuda:", "cuda:-1", "cuda:x", "CUDA"] {
            let why = On::gpus(name, 1).unwrap_err().to_string();
            assert!(why.contains("cpu, cuda or cuda:N"), "{name}: {why}");
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_worker_without_cuda_says_so() {
        let why = On::gpus("cuda:1", 2).unwrap_err().to_string();
        assert_eq!(
            why,
            "the option device is cuda:1, and this worker was built without the feature cuda \
             (docs/gpu.md says how it is)"
        );
    }
}
