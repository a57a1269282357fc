//! How far ahead of the products weights are asked for.
//!
//! How much of a stream a core brings by itself differs by its make: with weights asked for 4 to 8 KiB
//! ahead a step takes a third less time on one, and two fifths more on another. So it is measured
//! where it matters. It changes no bit.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What is worth a try, in bytes.
pub(crate) const REACHES: [usize; 5] = [0, 2048, 4096, 6144, 8192];

/// The machine's, and so one for all models of the process.
static REACH: AtomicUsize = AtomicUsize::new(4096);

/// In bytes; a multiple of a cache line.
#[inline(always)]
pub(crate) fn reach() -> usize {
    REACH.load(Ordering::Relaxed)
}

pub(crate) fn set_reach(bytes: usize) {
    REACH.store(bytes, Ordering::Relaxed);
}
