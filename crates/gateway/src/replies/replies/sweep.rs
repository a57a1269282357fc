//! Replies that are forgotten: deleted, old, or too many.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::{Entry, Replies};

/// Maximum number of replies that are kept in memory after their end.
const MOST_ENDED: usize = 10_000;

/// Maximum size of all replies in memory, with their requests, in bytes. Replies in progress count,
/// and replies that have ended make room.
const MOST_BYTES: usize = 512 << 20;

/// Maximum size of one tenant's replies in memory after their end, with their requests, in bytes.
const MOST_ENDED_BYTES: usize = 32 << 20;

/// Time for which refused requests are remembered. Clients wait at most 120 s before a retry.
const REFUSED: Duration = Duration::from_secs(180);

impl Replies {
    /// Forgets a reply. One in progress is canceled. The future ends when the stores have it no
    /// longer, which happens without it as well; its result is false if a store keeps the reply.
    pub(crate) fn remove(&self, entry: &Entry) -> impl Future<Output = bool> + use<> {
        entry.removed.store(true, Ordering::SeqCst);
        entry.log.cancel();
        self.known.lock().remove(entry);
        let own = self.store.as_ref().map(|store| store.remove(entry.record.id));
        let shared = self.shared.as_ref();
        let shared = shared.map(|shared| shared.remove(entry.record.id, &entry.record.join));
        async move {
            let own = match own {
                Some(own) => own.await.is_ok(),
                None => true,
            };
            let shared = match shared {
                Some(shared) => shared.await.unwrap_or_default(),
                None => true,
            };
            own && shared
        }
    }

    /// Forgets replies that ended long ago.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let old = |entry: &Arc<Entry>| {
            entry.ended.lock().filter(|ended| now.duration_since(*ended) >= self.times.keep)
        };
        let mut known = self.known.lock();
        let gone: Vec<_> =
            known.entries.values().filter(|entry| old(entry).is_some()).cloned().collect();
        gone.iter().for_each(|entry| known.remove(entry));
        known.forget_refused(REFUSED);
        drop(known);
        self.make_room();
        if let Some(store) = &self.store {
            store.sweep(self.times.keep);
        }
    }

    /// Forgets the replies that ended first, until the others are few and small enough. A store has
    /// them still.
    pub(super) fn make_room(&self) {
        let mut known = self.known.lock();
        known.added = 0;
        let (mut bytes, mut ended, mut tenants) = (0, Vec::new(), HashMap::new());
        for entry in known.entries.values() {
            let size = entry.bytes + entry.log.bytes();
            bytes += size;
            if let Some(at) = *entry.ended.lock() {
                ended.push((at, size, entry.clone()));
                *tenants.entry(entry.record.tenant.clone()).or_insert(0) += size;
            }
        }
        let are_small = tenants.values().all(|own| *own <= MOST_ENDED_BYTES);
        if bytes <= MOST_BYTES && ended.len() <= MOST_ENDED && are_small {
            return;
        }
        ended.sort_by_key(|(at, ..)| *at);
        let mut left = ended.len();
        for (_, size, entry) in &ended {
            let Some(own) = tenants.get_mut(&entry.record.tenant) else { continue };
            if bytes > MOST_BYTES || left > MOST_ENDED || *own > MOST_ENDED_BYTES {
                known.remove(entry);
                (bytes, left, *own) = (bytes - size, left - 1, *own - size);
            }
        }
    }
}
