//! Memory that a model needs, and the KV cache that fits beside it.

use nsbridge_checkpoint::{Checkpoint, TensorInfo};
use nsbridge_kernels::attention::PAGE;

use crate::capacity::{Memory, mebibytes};
use crate::config::{Config, SCALED_TOGETHER, scaled_together};
use crate::error::LoadError;
use crate::formats::{mean_width, width_on_device, width_on_gpu};
use crate::network::{Backend, GpuDevices, GpuRoom, Setup};

/// Bytes of a GPU's free memory that are left for the buffers of steps, at most a tenth of it.
const MAX_BYTES_LEFT: u64 = 3 << 30;

/// Part of a machine's memory beside the weights that the KV cache may take by default, as a divisor. The
/// rest is for requests, replies and other programs.
const CPU_CACHE_DIVISOR: u64 = 2;

/// Memory of a model, and its number of ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Footprint {
    memory: Memory,
    ranks: usize,
}

impl Footprint {
    /// Computes the memory of a model with this setup.
    pub(super) fn new(config: &Config, checkpoint: &Checkpoint, setup: &Setup) -> Self {
        let tensors = checkpoint.tensors();
        let mean = |width: &dyn Fn(&TensorInfo) -> f64| {
            let bytes = |tensor: &TensorInfo| tensor.elements() as f64 * width(tensor);
            let elements: u64 = tensors.iter().map(TensorInfo::elements).sum();
            tensors.iter().map(bytes).sum::<f64>() / elements.max(1) as f64
        };
        let weight = match (&setup.device, setup.format) {
            (Backend::Cpu | Backend::Gpu(_), Some(format)) => format.width(),
            (Backend::Gpu(_), None) if !setup.device.is_exact() => {
                let scaled = scaled_together(checkpoint.model()).unwrap_or(SCALED_TOGETHER);
                mean(&|tensor| width_on_gpu(tensor, scaled))
            }
            (Backend::Cpu | Backend::Gpu(_), None) => mean_width(tensors),
            // A device stores the checkpoint's own format, or f32.
            (Backend::Candle(_), _) => mean(&|tensor| width_on_device(tensor.dtype)),
        };
        let positions = setup.blocks.saturating_mul(PAGE);
        let memory = Memory::new(config, setup.ranks, weight, setup.kv, positions);
        Self { memory, ranks: setup.ranks.max(1) }
    }

    /// Returns the part of these bytes that is on a GPU with so many of the ranks.
    fn part(&self, bytes: u64, ranks: usize) -> u64 {
        (bytes / self.ranks as u64).saturating_mul(ranks as u64)
    }
}

/// Returns the default number of KV-cache blocks of the target and of the draft: as many of those of the
/// setup as fit beside the weights, on each GPU or on the machine, but enough for `one` request.
pub(super) fn blocks(
    setup: &Setup,
    target: &Footprint,
    draft: Option<&Footprint>,
    one: usize,
) -> usize {
    let models: Vec<_> = [target].into_iter().chain(draft).collect();
    match &setup.device {
        Backend::Gpu(on) => rooms(on, &models)
            .map_or(setup.blocks, |rooms| blocks_in(&rooms, &models, setup.blocks, one)),
        Backend::Cpu => nsbridge_kernels::memory::available()
            .map_or(setup.blocks, |free| blocks_beside(free, &models, setup.blocks, one)),
        Backend::Candle(_) => setup.blocks,
    }
}

/// Returns the number of blocks of each of the models that fit on a machine with this free memory.
fn blocks_beside(free: u64, models: &[&Footprint], most: usize, one: usize) -> usize {
    let sum = |of: fn(&Memory) -> u64| models.iter().map(|own| of(&own.memory)).sum::<u64>();
    let room = free.saturating_sub(sum(|own| own.weights)) / CPU_CACHE_DIVISOR;
    bounded(room / sum(|own| own.position).max(1) / PAGE as u64, most, one)
}

/// Returns the number of blocks that fit, at most the largest useful number, but enough for one request.
fn bounded(fit: u64, most: usize, one: usize) -> usize {
    usize::try_from(fit).unwrap_or(usize::MAX).clamp(one.min(most), most)
}

/// Returns the room on each GPU for the models, if the devices report it.
fn rooms(on: &GpuDevices, models: &[&Footprint]) -> Option<Vec<GpuRoom>> {
    on.rooms(&models.iter().map(|own| own.ranks).collect::<Vec<_>>())
}

/// Returns the number of blocks of each of the models that fit on these GPUs.
fn blocks_in(rooms: &[GpuRoom], models: &[&Footprint], most: usize, one: usize) -> usize {
    let fits = rooms.iter().map(|room| {
        let sum = |of: fn(&Memory) -> u64| {
            let parts = models.iter().zip(&room.ranks);
            parts.map(|(own, ranks)| own.part(of(&own.memory), *ranks)).sum::<u64>()
        };
        let free =
            (room.free - MAX_BYTES_LEFT.min(room.free / 10)).saturating_sub(sum(|own| own.weights));
        free / sum(|own| own.position).max(1) / PAGE as u64
    });
    bounded(fits.min().unwrap_or(u64::MAX), most, one)
}

/// Refuses a model that is larger than the available memory, because the system would kill the
/// worker while it answers. `given` is true if an option sets the size of the cache.
///
/// # Errors
///
/// Returns an error with the terms of the sum.
pub(super) fn check(
    target: &Footprint,
    draft: Option<&Footprint>,
    device: &Backend,
    given: bool,
) -> Result<(), LoadError> {
    let models: Vec<_> = [target].into_iter().chain(draft).collect();
    let needed = models.iter().fold(0u64, |sum, own| sum.saturating_add(own.memory.bytes()));
    let (short, or) = match device {
        Backend::Cpu => {
            let room = nsbridge_kernels::memory::available().filter(|room| needed > *room);
            let has = |room| format!("this machine has {:.1} MiB", mebibytes(room));
            (room.map(has), ", or quantize")
        }
        Backend::Gpu(on) => {
            (rooms(on, &models).and_then(|rooms| short_of(&rooms, &models)), ", or quantize")
        }
        Backend::Candle(on) => {
            let room = on.free().filter(|room| needed > *room);
            let has =
                |room| format!("the GPUs of the option device have {:.1} MiB", mebibytes(room));
            (room.map(has), "")
        }
    };
    let Some(short) = short else { return Ok(()) };
    let set = if given {
        "a lower kv_cache_mb"
    } else {
        "n_positions, max_rolling_batch_size, kv_cache_dtype or kv_cache_mb"
    };
    let of_draft = draft.map(|draft| format!(", and its draft {}", draft.memory));
    Err(LoadError::Worker(format!(
        "the model does not fit: {}{}, and {short}; set {set}{or}",
        target.memory,
        of_draft.unwrap_or_default()
    )))
}

/// Returns what the first GPU has and needs that is too small for its parts of the models.
fn short_of(rooms: &[GpuRoom], models: &[&Footprint]) -> Option<String> {
    rooms.iter().enumerate().find_map(|(at, room)| {
        let parts = models.iter().zip(&room.ranks);
        let parts = parts.map(|(own, ranks)| own.part(own.memory.bytes(), *ranks));
        let needed = parts.fold(0u64, u64::saturating_add);
        let [needs, has] = [needed, room.free].map(mebibytes);
        (needed > room.free).then(|| {
            format!("GPU {at} of the option device needs {needs:.1} MiB of it and has {has:.1} MiB")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{Footprint, blocks_beside, blocks_in, short_of};
    use crate::capacity::Memory;
    use crate::network::GpuRoom;

    const GIB: u64 = 1 << 30;

    fn footprint(weights: u64, position: u64, ranks: usize) -> Footprint {
        Footprint { memory: Memory { weights, position, positions: 0 }, ranks }
    }

    #[test]
    fn a_draft_has_as_many_positions_as_its_target() {
        // 80 GiB, of which 3 are left: 37 GiB are for positions of 320 KiB, and of 32 KiB beside.
        let target = footprint(38 * GIB, 320 << 10, 1);
        let draft = footprint(2 * GIB, 32 << 10, 1);
        let room = |free, models| [GpuRoom { free: free * GIB, ranks: vec![1; models] }];
        let both = [&target, &draft];
        let right = 37 * (1 << 30) / (352 << 10) / 32;
        assert_eq!(blocks_in(&room(80, 2), &both, 100_000, 256), right);
        assert_eq!(blocks_in(&room(80, 1), &[&target], 100_000, 256), 3993);
        assert_eq!(blocks_in(&room(80, 2), &both, 1000, 256), 1000);
        assert_eq!(blocks_in(&room(20, 2), &both, 100_000, 256), 256);
    }

    #[test]
    fn the_default_cache_takes_half_of_the_memory_beside_the_weights() {
        // 24 GiB, of which weights have 6: 9 GiB are for positions of 45 KiB, and of 3 KiB beside.
        let (target, draft) = (footprint(5 * GIB, 45 << 10, 2), footprint(GIB, 3 << 10, 1));
        let both = [&target, &draft];
        let right = 9 * (1 << 30) / (48 << 10) / 32;
        assert_eq!(blocks_beside(24 * GIB, &both, 100_000, 256), right);
        assert_eq!(blocks_beside(24 * GIB, &both, 1000, 256), 1000);
        // One request has its room, and the check of the load decides whether it fits.
        assert_eq!(blocks_beside(4 * GIB, &both, 100_000, 256), 256);
    }

    #[test]
    fn each_gpu_has_room_for_its_own_ranks() {
        // A draft is on the first of two GPUs.
        let target = footprint(66 * GIB, 320 << 10, 2);
        let draft = footprint(2 * GIB, 32 << 10, 1);
        let room = |free, ranks| GpuRoom { free: free * GIB, ranks };
        let rooms = [room(80, vec![1, 1]), room(80, vec![1, 0])];
        // 80 - 3 - 33 - 2 GiB for half of 320 KiB and for 32 KiB.
        let right = 42 * (1 << 30) / (192 << 10) / 32;
        assert_eq!(blocks_in(&rooms, &[&target, &draft], 100_000, 256), right);
        // Both ranks on one GPU.
        let right = 74 * (1 << 30) / (320 << 10) / 32;
        assert_eq!(blocks_in(&[room(143, vec![2])], &[&target], 100_000, 256), right);

        let models = [&target, &draft];
        assert_eq!(short_of(&rooms, &models), None);
        let short = short_of(&[room(34, vec![1, 1]), room(34, vec![1, 0])], &models).unwrap();
        assert!(short.contains("GPU 0") && short.contains("needs 35840.0 MiB"), "{short}");
        let short = short_of(&[room(36, vec![1, 1]), room(32, vec![1, 0])], &models).unwrap();
        assert!(short.contains("GPU 1") && short.contains("has 32768.0 MiB"), "{short}");
    }
}
