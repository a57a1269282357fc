//! GPUs on which ranks compute, and their arithmetic.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nsbridge_gpu::device::Device;

use crate::error::LoadError;
use crate::network::arithmetic::Arithmetic;
use nsbridge_kernels::Format;

/// GPUs on which a model's ranks compute with this engine's kernels.
#[derive(Clone, Debug)]
pub struct GpuDevices {
    /// Device of rank i; ranks beyond the list share the last device.
    devices: Vec<Arc<dyn Device>>,
    /// GPU of each device. Several devices may be streams of one.
    gpus: Vec<usize>,
    arithmetic: Arithmetic,
    /// True if the launches of a step are recorded, and enqueued as one.
    recorded: Arc<AtomicBool>,
}

/// Free memory of a GPU, and what is put on it.
#[derive(Clone, Debug)]
pub(crate) struct GpuRoom {
    /// Free bytes.
    pub(crate) free: u64,
    /// Number of ranks of each model.
    pub(crate) ranks: Vec<usize>,
}

impl GpuDevices {
    /// Puts rank i on device i, and the ranks beyond the list on the last one.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no device.
    pub fn new(devices: Vec<Arc<dyn Device>>, arithmetic: Arithmetic) -> Result<Self, LoadError> {
        if devices.is_empty() {
            return Err(LoadError::Worker("a model on GPUs needs a device".to_owned()));
        }
        let gpus = (0..devices.len()).collect();
        Ok(Self { devices, gpus, arithmetic, recorded: Arc::new(AtomicBool::new(true)) })
    }

    /// Opens the GPUs with these numbers, one for each rank. Each rank has a stream of its own, also
    /// where several have the same GPU: they wait for each other. Returns `None` if some GPUs cannot
    /// read each other's memory.
    ///
    /// # Errors
    ///
    /// Returns an error that names a GPU that cannot be used.
    #[cfg(feature = "cuda")]
    pub(in crate::network) fn cuda(
        numbers: &[usize],
        arithmetic: Arithmetic,
    ) -> Result<Option<Self>, LoadError> {
        let refused = |number: &usize, error| {
            LoadError::Worker(format!(
                "the option device names GPU {number}, which cannot be used: {error}"
            ))
        };
        let open = |number: &usize| {
            nsbridge_gpu::cuda::Cuda::new(*number).map_err(|error| refused(number, error))
        };
        let gpus = numbers.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        for (number, own) in numbers.iter().zip(&gpus) {
            for other in &gpus {
                if !own.share_with(other).map_err(|error| refused(number, error))? {
                    return Ok(None);
                }
            }
        }
        let devices = gpus.into_iter().map(|gpu| Arc::new(gpu) as _).collect();
        Ok(Some(Self { gpus: numbers.to_vec(), ..Self::new(devices, arithmetic)? }))
    }

    /// Emulates a GPU for each rank.
    #[cfg(feature = "emulator")]
    pub(in crate::network) fn emulators(
        ranks: usize,
        arithmetic: Arithmetic,
    ) -> Result<Self, LoadError> {
        let emulator = || -> Arc<dyn Device> { Arc::new(nsbridge_gpu::emulator::Emulator::new()) };
        Self::new((0..ranks.max(1)).map(|_| emulator()).collect(), arithmetic)
    }

    /// Returns the device of a rank.
    pub(super) fn device(&self, rank: usize) -> &Arc<dyn Device> {
        &self.devices[rank.min(self.devices.len() - 1)]
    }

    /// Returns the switch of recorded launches.
    pub(super) fn recorded(&self) -> Arc<AtomicBool> {
        self.recorded.clone()
    }

    /// Selects whether the launches of a step are recorded, also for a model that is loaded.
    #[cfg(feature = "testing")]
    pub(crate) fn set_recorded(&self, recorded: bool) {
        self.recorded.store(recorded, std::sync::atomic::Ordering::Relaxed);
    }

    pub(in crate::network) fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// Returns the room on each GPU for models with these numbers of ranks, if the devices report it.
    pub(crate) fn rooms(&self, ranks: &[usize]) -> Option<Vec<GpuRoom>> {
        let mut gpus = self.gpus.clone();
        gpus.sort_unstable();
        gpus.dedup();
        let last = self.gpus.len() - 1;
        let room = |gpu: usize| {
            let device = self.gpus.iter().position(|own| *own == gpu)?;
            let here = |ranks: &usize| {
                (0..*ranks).filter(|rank| self.gpus[*rank.min(&last)] == gpu).count()
            };
            let free = self.devices[device].free_memory()?;
            Some(GpuRoom { free, ranks: ranks.iter().map(here).collect() })
        };
        gpus.into_iter().map(room).collect()
    }

    /// Returns true if there are kernels for this format.
    pub(crate) fn has_kernels_for(format: Format) -> bool {
        let known =
            [Format::Q8_0, Format::Q4K, Format::Q6K, Format::F32, Format::Bf16, Format::F16];
        known.contains(&format.in_memory())
    }
}
