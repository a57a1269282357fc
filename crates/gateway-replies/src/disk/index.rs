//! Sizes and times of the replies that are stored. Records are large, so that they are read for neither.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use nsbridge_client::{RequestId, Tenant};
use nsbridge_crypto::AtRest;
use nsbridge_protocol::Uuid;
use parking_lot::Mutex;
use redb::ReadableTable;

use super::{DiskEnd, ENDINGS, PIECES, Place, REPLIES, Record, database, open};

/// Maximum size of the stored replies of one tenant, in bytes, with their requests.
const MAX_BYTES_PER_TENANT: u64 = 1 << 30;

/// Maximum size of all stored replies, in bytes.
const MAX_BYTES_OF_ALL: u64 = 8 << 30;

/// Room for another reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Free,
    /// The tenant stores as much as it may.
    NoneForTenant,
    /// All tenants together store as much as they may.
    NoneForAll,
}

/// Replies that are stored and can be opened.
#[derive(Debug, Default)]
pub(super) struct Index(Mutex<Replies>);

#[derive(Debug, Default)]
struct Replies {
    /// Bytes of all.
    all: u64,
    /// Bytes of each tenant.
    tenants: HashMap<Tenant, u64>,
    replies: HashMap<RequestId, Reply>,
}

#[derive(Debug)]
struct Reply {
    tenant: Tenant,
    bytes: u64,
    expires_at: SystemTime,
    ended_at: Option<SystemTime>,
}

impl Index {
    /// Reads the sizes and times of what a database has.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be read.
    pub(super) fn of(database: &database::Place, seal: &AtRest) -> Result<Self, redb::Error> {
        let (index, transaction) = (Self::default(), database.begin_read()?);
        for entry in transaction.open_table(REPLIES)?.iter()? {
            let (key, sealed) = entry?;
            let id = RequestId(Uuid::from_bytes(key.value()));
            // What cannot be opened is damaged, and is kept for a look at it.
            if let Some(record) = open::<Record>(seal, Place::Record(id), sealed.value()) {
                index.put(id, &record.tenant, record.expires_at, sealed.value().len());
            }
        }
        for entry in transaction.open_table(PIECES)?.iter()? {
            let (key, sealed) = entry?;
            index.add(RequestId(Uuid::from_bytes(key.value().0)), sealed.value().len());
        }
        for entry in transaction.open_table(ENDINGS)?.iter()? {
            let (key, sealed) = entry?;
            let id = RequestId(Uuid::from_bytes(key.value()));
            if let Some(kept) = open::<DiskEnd>(seal, Place::Ending(id), sealed.value()) {
                index.end(id, kept.at);
            }
        }
        Ok(index)
    }

    /// Returns the room for another reply of the tenant.
    pub(super) fn room(&self, tenant: &Tenant) -> Room {
        let index = self.0.lock();
        let own = index.tenants.get(tenant).copied().unwrap_or_default();
        match (own < MAX_BYTES_PER_TENANT, index.all < MAX_BYTES_OF_ALL) {
            (true, true) => Room::Free,
            (true, false) => Room::NoneForAll,
            (false, _) => Room::NoneForTenant,
        }
    }

    /// Counts a request. One that is there already is replaced, and its pieces stay.
    pub(super) fn put(&self, id: RequestId, tenant: &Tenant, expires_at: SystemTime, bytes: usize) {
        let reply = || Reply { tenant: tenant.clone(), bytes: 0, expires_at, ended_at: None };
        let mut index = self.0.lock();
        let reply = index.replies.entry(id).or_insert_with(reply);
        (reply.expires_at, reply.ended_at) = (expires_at, None);
        drop(index);
        self.add(id, bytes);
    }

    /// Notes the end of a reply.
    pub(super) fn end(&self, id: RequestId, at: SystemTime) {
        if let Some(reply) = self.0.lock().replies.get_mut(&id) {
            reply.ended_at = Some(at);
        }
    }

    pub(super) fn has(&self, id: RequestId) -> bool {
        self.0.lock().replies.contains_key(&id)
    }

    /// Returns the replies that ended, or expired without an end, this long ago.
    pub(super) fn old(&self, keep: Duration) -> Vec<RequestId> {
        let now = SystemTime::now();
        let is_old = |reply: &Reply| {
            let at = reply.ended_at.unwrap_or(reply.expires_at);
            now.duration_since(at).unwrap_or_default() >= keep
        };
        let replies = self.0.lock();
        replies.replies.iter().filter(|(_, reply)| is_old(reply)).map(|(id, _)| *id).collect()
    }

    /// Counts a piece of a reply.
    pub(super) fn add(&self, id: RequestId, bytes: usize) {
        let index = &mut *self.0.lock();
        let Some(reply) = index.replies.get_mut(&id) else { return };
        reply.bytes += bytes as u64;
        index.all += bytes as u64;
        *index.tenants.entry(reply.tenant.clone()).or_default() += bytes as u64;
    }

    /// Forgets a reply, which is removed.
    pub(super) fn remove(&self, id: RequestId) {
        let index = &mut *self.0.lock();
        let Some(Reply { tenant, bytes, .. }) = index.replies.remove(&id) else { return };
        index.all -= bytes;
        if let Some(own) = index.tenants.get_mut(&tenant) {
            *own -= bytes;
            if *own == 0 {
                index.tenants.remove(&tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use nsbridge_client::{RequestId, Tenant};
    use nsbridge_protocol::Uuid;

    use super::{Index, MAX_BYTES_OF_ALL, MAX_BYTES_PER_TENANT, Room};

    fn id(n: u128) -> RequestId {
        RequestId(Uuid::from_u128(n))
    }

    #[test]
    fn m4_a_tenant_stores_a_bounded_number_of_bytes() {
        let (index, now) = (Index::default(), SystemTime::now());
        let [one, other, third] = ["a", "b", "c"].map(|name| name.parse::<Tenant>().unwrap());
        let part = (MAX_BYTES_PER_TENANT / 64) as usize;
        for n in 0..64 {
            assert_eq!(index.room(&one), Room::Free);
            index.put(id(n), &one, now, part / 2);
            index.add(id(n), part / 2);
        }
        assert_eq!([&one, &other].map(|it| index.room(it)), [Room::NoneForTenant, Room::Free]);
        // What was never stored, or is removed, is not given back.
        index.remove(id(99));
        assert_eq!(index.room(&one), Room::NoneForTenant);
        index.remove(id(0));
        index.remove(id(0));
        assert_eq!(index.room(&one), Room::Free);
        index.put(id(100), &third, now, MAX_BYTES_OF_ALL as usize);
        assert_eq!(index.room(&one), Room::NoneForAll);
        index.remove(id(100));
        (0..64).for_each(|n| index.remove(id(n)));
        let left = index.0.lock();
        assert_eq!((left.all, left.tenants.len(), left.replies.len()), (0, 0, 0));
    }

    #[test]
    fn a_reply_is_old_after_its_end_or_its_deadline() {
        let (index, tenant) = (Index::default(), "a".parse().unwrap());
        let keep = Duration::from_secs(100);
        let [long_ago, now] = [2 * keep, Duration::ZERO].map(|ago| SystemTime::now() - ago);
        for n in 0..5 {
            index.put(id(n), &tenant, if n == 0 { long_ago } else { now + keep }, 1);
        }
        index.end(id(1), long_ago);
        index.end(id(2), now);
        index.end(id(3), long_ago);
        // It runs again.
        index.put(id(3), &tenant, now + keep, 1);
        let mut old = index.old(keep);
        old.sort_unstable();
        assert_eq!(old, [id(0), id(1)]);
    }
}
