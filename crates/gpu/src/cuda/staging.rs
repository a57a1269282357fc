//! Copies between the CPU and a device, through pinned memory.
//!
//! The driver copies from other memory too, but then the call waits for the copy.

use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream, DriverError, result};

use super::failed;
use crate::error::{Error, Result};

/// Bytes of a slot.
const SLOT: usize = 16 << 20;

/// Alignment of the parts of a slot.
const ALIGNED: usize = 256;

/// Pinned memory, and the end of its last use on the device.
struct Slot {
    memory: NonNull<u8>,
    event: CudaEvent,
    stream: Arc<CudaStream>,
}

// SAFETY: the memory is the slot's own.
unsafe impl Send for Slot {}

impl Slot {
    /// Allocates a slot. The stream's context is the current one.
    fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let failed = |error| failed("allocating pinned memory", error);
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = stream.context().new_event(Some(flags)).map_err(failed)?;
        // SAFETY: the memory is written below before it is read.
        let memory = unsafe { result::malloc_host(SLOT, 0) }.map_err(failed)?;
        let memory = NonNull::<u8>::new(memory.cast())
            .ok_or_else(|| Error::new("the driver gave no pinned memory"))?;
        // SAFETY: the memory is that long.
        unsafe { memory.write_bytes(0, SLOT) };
        Ok(Self { memory, event, stream: stream.clone() })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Copies may still run.
        let _ = self.stream.synchronize();
        // SAFETY: no copy uses the memory any more.
        let _ = unsafe { result::free_host(self.memory.as_ptr().cast()) };
    }
}

/// Slots for copies to the device. They take turns, so that one is filled while the other is read.
pub(super) struct Uploads {
    slots: [Slot; 2],
    /// Slot in use, and its first unused byte.
    current: usize,
    used: usize,
}

impl Uploads {
    pub(super) fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        Ok(Self { slots: [Slot::new(stream)?, Slot::new(stream)?], current: 0, used: 0 })
    }

    /// Enqueues a copy. Waits only where both slots are full of copies that have not ended.
    ///
    /// # Safety
    ///
    /// The memory from `to` on is allocated.
    pub(super) unsafe fn copy(
        &mut self,
        stream: &CudaStream,
        mut to: u64,
        mut bytes: &[u8],
    ) -> Result<(), DriverError> {
        while !bytes.is_empty() {
            if self.used == SLOT {
                self.slots[self.current].event.record(stream)?;
                let next = (self.current + 1) % self.slots.len();
                self.slots[next].event.synchronize()?;
                (self.current, self.used) = (next, 0);
            }
            let (now, rest) = bytes.split_at(bytes.len().min(SLOT - self.used));
            // SAFETY: the bytes are within the slot, and no copy reads them.
            let part = unsafe {
                let part = self.slots[self.current].memory.as_ptr().add(self.used);
                std::ptr::copy_nonoverlapping(now.as_ptr(), part, now.len());
                std::slice::from_raw_parts(part, now.len())
            };
            // The part is in use from now on, even if the call fails.
            self.used = (self.used + now.len()).next_multiple_of(ALIGNED);
            // SAFETY: the part is kept until the copy has ended; the caller vouches for the address.
            unsafe { result::memcpy_htod_async(to, part, stream.cu_stream())? };
            to += now.len() as u64;
            bytes = rest;
        }
        Ok(())
    }
}

/// Slot for copies from the device.
pub(super) struct Downloads(Slot);

impl Downloads {
    pub(super) fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        Ok(Self(Slot::new(stream)?))
    }

    /// Copies after the work so far.
    ///
    /// # Safety
    ///
    /// The memory from `from` on is allocated.
    pub(super) unsafe fn copy(
        &mut self,
        stream: &CudaStream,
        mut from: u64,
        bytes: &mut [u8],
    ) -> Result<(), DriverError> {
        for bytes in bytes.chunks_mut(SLOT) {
            // SAFETY: the slot is zeroed or has the bytes of the last copy, which has ended.
            let part =
                unsafe { std::slice::from_raw_parts_mut(self.0.memory.as_ptr(), bytes.len()) };
            // SAFETY: the slot is not read before the event; the caller vouches for the address.
            unsafe { result::memcpy_dtoh_async(part, from, stream.cu_stream())? };
            self.0.event.record(stream)?;
            self.0.event.synchronize()?;
            bytes.copy_from_slice(part);
            from += bytes.len() as u64;
        }
        Ok(())
    }
}
