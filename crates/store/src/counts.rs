//! What a store has done so far.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Gives what it was before.
    pub(crate) fn add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::Relaxed)
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a store has done so far, for progress bars and metrics.
#[derive(Debug, Default)]
pub struct Counts {
    /// Bytes of models that came over the network, or from the folder that they are kept in.
    pub from_store: Count,
    /// Bytes that the cache had.
    pub from_cache: Count,
    /// Bytes that were written into the cache.
    pub to_cache: Count,
    /// Readings that were begun again.
    pub retries: Count,
    /// Chunks that came damaged.
    pub wrong: Count,
    /// Chunks of the cache that were damaged.
    pub wrong_in_cache: Count,
}
