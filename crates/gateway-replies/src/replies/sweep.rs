//! Replies that are forgotten: deleted, old, or too many.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{Entry, Replies};
use crate::store::ReplyStore as _;

/// Maximum number of replies that are kept in memory after their end.
const MAX_ENDED_REPLIES: usize = 10_000;

/// Maximum size of all replies in memory, with their requests, in bytes. Replies in progress count,
/// and replies that have ended make room.
const MAX_BYTES: usize = 512 << 20;

/// Maximum size of one tenant's replies in memory after their end, with their requests, in bytes.
const MAX_ENDED_BYTES_PER_TENANT: usize = 32 << 20;

/// Time for which refused requests are remembered. Clients wait at most 120 s before a retry.
const REFUSED_FOR: Duration = Duration::from_secs(180);

impl Replies {
    /// Forgets a reply. One in progress is canceled. The future ends when the stores have it no
    /// longer, which happens without it as well; its result is false if a store keeps the reply.
    pub fn remove(&self, entry: &Entry) -> impl Future<Output = bool> + use<> {
        let mut is_removed = entry.removal.lock();
        *is_removed = true;
        entry.log.cancel();
        if let Some(continued) = self.table.lock().remove(entry) {
            continued.log.cancel();
        }
        let removed: Vec<_> = self.stores().map(|store| store.remove(&entry.record)).collect();
        drop(is_removed);
        async move { join_all(removed).await.iter().all(Result::is_ok) }
    }

    /// Forgets replies that ended long ago.
    pub async fn sweep(&self) {
        self.forget_old();
        self.make_room();
        if let Some(disk) = &self.stores.disk {
            // What cannot be removed now is removed later.
            let _ = disk.sweep(self.times).await;
        }
    }

    fn forget_old(&self) {
        let now = Instant::now();
        let old = |entry: &&Arc<Entry>| {
            let ended = *entry.ended.lock();
            ended.is_some_and(|ended| now.duration_since(ended) >= self.times.keep)
        };
        let mut table = self.table.lock();
        let gone: Vec<_> = table.entries.values().filter(old).cloned().collect();
        gone.iter().for_each(|entry| drop(table.remove(entry)));
        table.forget_refused(REFUSED_FOR);
        table.forget_removals();
    }

    /// Forgets the replies that ended first, until the others are few and small enough. A store has
    /// them still.
    pub(super) fn make_room(&self) {
        let mut table = self.table.lock();
        table.added = 0;
        let (mut bytes, mut ended, mut tenants) = (0, Vec::new(), HashMap::new());
        for entry in table.entries.values() {
            let size = entry.bytes + entry.log.bytes();
            bytes += size;
            if let Some(at) = *entry.ended.lock() {
                ended.push((at, size, entry.clone()));
                *tenants.entry(entry.record.tenant.clone()).or_insert(0) += size;
            }
        }
        let are_small = tenants.values().all(|own| *own <= MAX_ENDED_BYTES_PER_TENANT);
        if bytes <= MAX_BYTES && ended.len() <= MAX_ENDED_REPLIES && are_small {
            return;
        }
        ended.sort_by_key(|(at, ..)| *at);
        let mut left = ended.len();
        for (_, size, entry) in &ended {
            let Some(own) = tenants.get_mut(&entry.record.tenant) else { continue };
            if bytes > MAX_BYTES || left > MAX_ENDED_REPLIES || *own > MAX_ENDED_BYTES_PER_TENANT {
                table.remove(entry);
                (bytes, left, *own) = (bytes - size, left - 1, *own - size);
            }
        }
    }
}
