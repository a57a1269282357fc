//! Table of the replies that a gateway has in memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use nsbridge_protocol::{RequestId, Tenant};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::record::Record;
use crate::reply_log::ReplyLog;
use crate::store::StoredReply;

/// Replies that a gateway has in memory.
#[derive(Default)]
pub(super) struct Table {
    pub(super) entries: HashMap<RequestId, Arc<Entry>>,
    /// Replies by the hash of a retry, oldest first.
    by_retry: HashMap<[u8; 32], VecDeque<RequestId>>,
    /// Numbers of requests that were refused, by the hash of a retry, and the time of the last one.
    refused: HashMap<[u8; 32], (u32, Instant)>,
    /// Bytes of the requests that were added since the last sweep.
    pub(super) added: usize,
    /// Bytes of the requests by tenant.
    tenants: HashMap<Tenant, usize>,
    /// Replies to lines of batches, by the name of the line.
    pub(super) lines: HashMap<String, HashSet<RequestId>>,
    /// Removals of the replies that are in memory or being read.
    removals: HashMap<RequestId, Weak<Removal>>,
}

/// True if a reply was removed. All entries of one id have the same value. Its lock is held while a
/// change is handed to the stores, so that no change follows the removal. It is locked before the
/// table, never while the table is locked.
pub(super) type Removal = Mutex<bool>;

/// Reply with its request.
pub struct Entry {
    /// Pieces of the reply.
    pub log: Arc<ReplyLog>,
    /// Request of the reply.
    pub record: Record,
    /// Size of the record in memory, in bytes.
    pub(super) bytes: usize,
    /// True if another replica has it, and this one only knows what is shared of it.
    pub(super) elsewhere: bool,
    /// Name of the replica that received the request, if it is another one.
    pub(super) owner: Mutex<Option<String>>,
    /// Removal of the reply, shared by all entries of its id.
    pub(super) removal: Arc<Removal>,
    /// Time of the end.
    pub(super) ended: Mutex<Option<Instant>>,
}

/// Maximum size of one tenant's requests in memory, in bytes. Those in progress keep their places.
const MAX_BYTES_PER_TENANT: usize = 128 << 20;

/// Bytes of new requests after which the size is looked at before the next sweep.
const SWEEP_BYTES: usize = 64 << 20;

/// Maximum number of hashes of refused requests.
const MAX_REFUSED_HASHES: usize = 10_000;

impl Table {
    /// Adds an entry. It replaces the one of its id.
    pub(super) fn insert(&mut self, entry: &Arc<Entry>) {
        let id = entry.record.id;
        self.added += entry.bytes;
        *self.tenants.entry(entry.record.tenant.clone()).or_default() += entry.bytes;
        match self.entries.insert(id, entry.clone()) {
            Some(before) => self.give_back(&before),
            None => self.by_retry.entry(entry.record.retry_hash).or_default().push_back(id),
        }
    }

    /// Returns the removal of the replies of this id.
    pub(super) fn removal(&mut self, id: RequestId) -> Arc<Removal> {
        let known = self.removals.get(&id).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let removal = Arc::default();
            self.removals.insert(id, Arc::downgrade(&removal));
            removal
        })
    }

    /// Returns the removal of a new request. An earlier one of this id, which was removed, stays so.
    pub(super) fn new_removal(&mut self, id: RequestId) -> Arc<Removal> {
        self.removals.remove(&id);
        self.removal(id)
    }

    /// Forgets the removals of replies that nothing has any longer.
    pub(super) fn forget_removals(&mut self) {
        self.removals.retain(|_, removal| removal.strong_count() > 0);
    }

    /// Returns true if many bytes were added since the last sweep.
    pub(super) fn is_due(&self) -> bool {
        self.added >= SWEEP_BYTES
    }

    fn give_back(&mut self, entry: &Entry) {
        let Some(bytes) = self.tenants.get_mut(&entry.record.tenant) else { return };
        *bytes = bytes.saturating_sub(entry.bytes);
        if *bytes == 0 {
            self.tenants.remove(&entry.record.tenant);
        }
    }

    /// Makes room for a request of a tenant: its replies that ended first are forgotten. Returns false
    /// if those in progress leave none.
    pub(super) fn admits(&mut self, tenant: &Tenant, bytes: usize) -> bool {
        let own = self.tenants.get(tenant).copied().unwrap_or_default();
        let mut over = (own + bytes).saturating_sub(MAX_BYTES_PER_TENANT);
        if over == 0 {
            return true;
        }
        let ended = |entry: &Arc<Entry>| Some(((*entry.ended.lock())?, entry.clone()));
        let own = self.entries.values().filter(|entry| entry.record.tenant == *tenant);
        let mut ended: Vec<_> = own.filter_map(ended).collect();
        ended.sort_by_key(|(at, _)| *at);
        for (_, entry) in ended {
            if over == 0 {
                break;
            }
            over = over.saturating_sub(entry.bytes);
            self.remove(&entry);
        }
        over == 0
    }

    /// Forgets the entry of a reply, and returns it.
    pub(super) fn remove(&mut self, entry: &Entry) -> Option<Arc<Entry>> {
        let removed = self.entries.remove(&entry.record.id);
        if let Some(removed) = &removed {
            self.give_back(removed);
        }
        if let Some(ids) = self.by_retry.get_mut(&entry.record.retry_hash) {
            // The oldest goes first, so its place is near the front.
            if let Some(place) = ids.iter().position(|id| *id == entry.record.id) {
                ids.remove(place);
            }
            if ids.is_empty() {
                self.by_retry.remove(&entry.record.retry_hash);
            }
        }
        removed
    }

    /// Returns the reply that a retry with this hash repeats: one that was interrupted, else one in
    /// progress, else the last one.
    pub(super) fn repeated(&self, retry_hash: &[u8; 32]) -> Option<Arc<Entry>> {
        let ids = self.by_retry.get(retry_hash)?;
        let entries = ids.iter().rev().filter_map(|id| self.entries.get(id));
        entries.min_by_key(|entry| entry.rank()).cloned()
    }

    /// Counts a request that was refused before it had a reply.
    pub(super) fn refuse(&mut self, retry_hash: [u8; 32]) {
        if self.refused.len() < MAX_REFUSED_HASHES || self.refused.contains_key(&retry_hash) {
            let (count, last) = self.refused.entry(retry_hash).or_insert((0, Instant::now()));
            (*count, *last) = (count.saturating_add(1), Instant::now());
        }
    }

    /// Returns true if a retry with this hash may repeat a request that was refused, once for each
    /// of them.
    pub(super) fn was_refused(&mut self, retry_hash: &[u8; 32]) -> bool {
        let Some((count, _)) = self.refused.get_mut(retry_hash) else { return false };
        *count -= 1;
        if *count == 0 {
            self.refused.remove(retry_hash);
        }
        true
    }

    /// Forgets the requests that were refused this long ago.
    pub(super) fn forget_refused(&mut self, after: Duration) {
        self.refused.retain(|_, (_, last)| last.elapsed() < after);
    }
}

impl Entry {
    pub(super) fn new(record: Record, elsewhere: bool, removal: Arc<Removal>) -> Arc<Self> {
        let bytes = record.bytes();
        let log = Arc::new(ReplyLog::new(&record));
        let (ended, owner) = (Mutex::new(None), Mutex::new(None));
        Arc::new(Self { log, record, bytes, elsewhere, owner, removal, ended })
    }

    /// Returns an entry with what was stored of it. Nothing in this process computes it.
    pub(super) fn restored(stored: StoredReply, removal: Arc<Removal>) -> Arc<Self> {
        let entry = Self::new(stored.record, stored.owner.is_some(), removal);
        if stored.end.is_some() {
            *entry.ended.lock() = Some(Instant::now());
        } else {
            *entry.owner.lock() = stored.owner;
        }
        entry.log.restore(stored.pieces, stored.fingerprint, stored.end);
        entry
    }

    /// Returns the rank of the reply among those that a retry may repeat.
    fn rank(&self) -> u8 {
        match self.log.has_failed() {
            Some(true) => 0,
            None if self.log.is_cancelled() => 0,
            None => 1,
            Some(false) => 2,
        }
    }

    /// Returns true if this process computes the reply.
    pub(super) fn is_live(&self) -> bool {
        !self.elsewhere && self.log.has_failed().is_none() && !self.log.is_cancelled()
    }
}

impl fmt::Debug for Entry {
    /// Omits the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("log", &self.log).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use nsbridge_protocol::RequestId;
    use tokio::time::{Instant, advance};

    use super::{Entry, MAX_BYTES_PER_TENANT, Table};
    use crate::store::testing::record;

    #[tokio::test(start_paused = true)]
    async fn m4_a_tenants_requests_in_memory_are_bounded_and_its_ended_ones_make_room() {
        let mut table = Table::default();
        let part = MAX_BYTES_PER_TENANT / 8;
        let new = |id: u128| {
            let body = "x".repeat(part - 4096);
            let record = super::Record { body, ..record(id, SystemTime::now()) };
            Entry::new(record, false, Arc::default())
        };
        let entries: Vec<Arc<Entry>> = (0..8).map(new).collect();
        let tenant = entries[0].record.tenant.clone();
        for entry in &entries {
            assert!(table.admits(&tenant, entry.bytes));
            table.insert(entry);
        }
        assert!(!table.admits(&tenant, part) && table.entries.len() == 8);
        assert!(table.admits(&"other".parse().unwrap(), part));
        for at in [5, 2] {
            *entries[at].ended.lock() = Some(Instant::now());
            advance(Duration::from_secs(1)).await;
        }
        // The one that ended first goes first.
        assert!(table.admits(&tenant, part));
        let has = |table: &Table, at: usize| {
            table.entries.contains_key(&RequestId(entries[at].record.id.0))
        };
        assert!(!has(&table, 5) && has(&table, 2));
        entries.iter().for_each(|entry| drop(table.remove(entry)));
        assert!(table.tenants.is_empty());
    }
}
