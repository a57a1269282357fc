//! Software-prefetch distance for weight streams, tuned at run time.
//!
//! CPUs differ in how much of a stream their hardware prefetchers bring in. With weights prefetched
//! 4 to 8 KiB ahead, a step takes a third less time on one CPU and two fifths more on another. So
//! the distance is measured on the machine itself. It does not affect the results.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Candidate prefetch distances, in bytes.
pub(crate) const REACHES: [usize; 5] = [0, 2048, 4096, 6144, 8192];

/// Current distance in bytes. It belongs to the machine, so all models of the process share it.
static REACH: AtomicUsize = AtomicUsize::new(4096);

/// Returns the prefetch distance in bytes, a multiple of the cache line size.
#[inline(always)]
pub(crate) fn reach() -> usize {
    REACH.load(Ordering::Relaxed)
}

pub(crate) fn set_reach(bytes: usize) {
    REACH.store(bytes, Ordering::Relaxed);
}
