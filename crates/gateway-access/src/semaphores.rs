//! Semaphores by key, such as those of each tenant, and permits for bytes.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// Semaphores of equal size by key. Each exists from its first use on.
#[derive(Debug)]
pub struct Semaphores<K> {
    permits: usize,
    by_key: Mutex<HashMap<K, Arc<Semaphore>>>,
}

impl<K: Eq + Hash> Semaphores<K> {
    /// Creates semaphores with this number of permits each.
    pub fn new(permits: usize) -> Self {
        Self { permits, by_key: Mutex::default() }
    }

    /// Returns the semaphore of a key.
    pub fn of(&self, key: K) -> Arc<Semaphore> {
        let new = || Arc::new(Semaphore::new(self.permits));
        self.by_key.lock().entry(key).or_insert_with(new).clone()
    }
}

/// Returns the number of permits, one for each KiB, of this many bytes: `most` at the most, so that
/// they can be acquired.
pub fn kib(bytes: usize, most: usize) -> u32 {
    u32::try_from((bytes / 1024 + 1).min(most)).unwrap_or(u32::MAX)
}
