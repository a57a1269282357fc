//! Heap of a gateway's process, whose peaks are given back to the system.
//!
//! glibc gives back what is free at the end of a heap alone. After a peak of requests, small values that
//! live on would keep the rest.

use std::time::Duration;

use tokio::time::Instant;

/// Resident memory above the least that was seen, in bytes, from which on memory is given back.
const GROWN: u64 = 16 << 20;

/// Interval at which memory is given back at most.
const EVERY: Duration = Duration::from_secs(20);

/// Size from which on a block has pages of its own, in bytes: glibc's value at the start, which would
/// grow to that of the largest block so far.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES: i32 = 128 << 10;

/// Heap of a process that does nothing but serve a gateway.
#[derive(Debug)]
pub(crate) struct Heap {
    /// Least resident memory that was seen, in bytes.
    least: u64,
    /// Time of the last attempt to give memory back.
    trimmed: Option<Instant>,
}

impl Heap {
    /// Has large blocks given back as soon as they are freed, from now on.
    pub(crate) fn of_this_process() -> Self {
        keep_no_large_blocks();
        Self { least: u64::MAX, trimmed: None }
    }

    /// Gives free memory back if the process has more than it needs when it is idle.
    pub(crate) async fn trim(&mut self) {
        let Some(resident) = resident() else { return };
        self.least = self.least.min(resident);
        let is_due = self.trimmed.is_none_or(|trimmed| trimmed.elapsed() >= EVERY);
        if is_due && resident - self.least >= GROWN {
            self.trimmed = Some(Instant::now());
            // It takes milliseconds, in which other threads may wait for memory.
            let _ = tokio::task::spawn_blocking(give_back).await;
        }
    }
}

/// Returns the resident memory of this process in bytes; `None` where it cannot be read.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the standard library has no such call")]
fn keep_no_large_blocks() {
    // SAFETY: glibc takes its own lock, and any value is valid.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_PAGES) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn keep_no_large_blocks() {}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the standard library has no such call")]
fn give_back() {
    // SAFETY: the call has no condition; glibc takes the locks of its heaps itself. With another
    // allocator it has nothing to give back.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back() {}
