//! Slots that are free.

use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::process::Process;

/// Place for one call at a time in a Python process.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) process: Arc<Process>,
    /// Number of the slot in its process.
    pub(crate) index: usize,
    /// Number of calls so far.
    pub(crate) calls: u64,
    pub(crate) stream: StdStream,
}

/// Free slots of all processes.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Mutex<Vec<Slot>>,
    /// At least one permit for each free slot.
    permits: Semaphore,
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self { free: Mutex::default(), permits: Semaphore::new(0) }
    }

    /// Adds a slot, unless its process takes no further call.
    pub(crate) fn put(&self, slot: Slot) {
        if !slot.process.is_usable() {
            return;
        }
        self.free.lock().push(slot);
        self.permits.add_permits(1);
    }

    /// Waits for a slot of a process that can take a call. Returns `None` once the pool is closed.
    pub(crate) async fn take(&self) -> Option<Slot> {
        loop {
            self.permits.acquire().await.ok()?.forget();
            let slot = self.free.lock().pop();
            if let Some(slot) = slot.filter(|slot| slot.process.is_usable()) {
                return Some(slot);
            }
        }
    }

    /// Drops the slots of processes that take no further call.
    pub(crate) fn forget_unusable(&self) {
        self.free.lock().retain(|slot| slot.process.is_usable());
    }

    /// Makes all calls of [`take`](Self::take) return `None`.
    pub(crate) fn close(&self) {
        self.permits.close();
    }
}
