//! Counters of a store.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counter that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `n` and returns the previous value.
    pub(crate) fn add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::Relaxed)
    }

    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of a store, for progress bars and metrics.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Bytes of models that were read over the network or from a model's folder.
    pub from_store: Count,
    /// Bytes that were read from the cache.
    pub from_cache: Count,
    /// Bytes that were written to the cache.
    pub to_cache: Count,
    /// Reads that were retried.
    pub retries: Count,
    /// Chunks that arrived damaged.
    pub wrong: Count,
    /// Chunks that were damaged in the cache.
    pub wrong_in_cache: Count,
}
