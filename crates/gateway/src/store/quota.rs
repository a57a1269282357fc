//! Bytes of the replies that are stored, by tenant.

use std::collections::HashMap;

use nsbridge_client::{RequestId, Tenant};
use nsbridge_crypto::AtRest;
use nsbridge_protocol::Uuid;
use parking_lot::Mutex;
use redb::ReadableTable;

use super::{PIECES, Place, REPLIES, Record, database, open};

/// Maximum size of the stored replies of one tenant, in bytes, with their requests.
const OF_TENANT: u64 = 1 << 30;

/// Maximum size of all stored replies, in bytes.
const OF_ALL: u64 = 8 << 30;

/// Room for another reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Free,
    /// The tenant stores as much as it may.
    NoneForTenant,
    /// All tenants together store as much as they may.
    NoneForAll,
}

/// Sizes of the replies that are stored.
#[derive(Debug, Default)]
pub(super) struct Quota(Mutex<Sizes>);

#[derive(Debug, Default)]
struct Sizes {
    all: u64,
    tenants: HashMap<Tenant, u64>,
    replies: HashMap<RequestId, (Tenant, u64)>,
}

impl Quota {
    /// Counts what a database has of each reply.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be read.
    pub(super) fn of(database: &database::Place, seal: &AtRest) -> Result<Self, redb::Error> {
        let (quota, transaction) = (Self::default(), database.begin_read()?);
        for entry in transaction.open_table(REPLIES)?.iter()? {
            let (key, sealed) = entry?;
            let id = RequestId(Uuid::from_bytes(key.value()));
            if let Some(record) = open::<Record>(seal, Place::Record(id), sealed.value()) {
                quota.put(id, &record.tenant, sealed.value().len());
            }
        }
        for entry in transaction.open_table(PIECES)?.iter()? {
            let (key, sealed) = entry?;
            quota.add(RequestId(Uuid::from_bytes(key.value().0)), sealed.value().len());
        }
        Ok(quota)
    }

    /// Returns the room for another reply of the tenant.
    pub(super) fn room(&self, tenant: &Tenant) -> Room {
        let sizes = self.0.lock();
        let own = sizes.tenants.get(tenant).copied().unwrap_or_default();
        match (own < OF_TENANT, sizes.all < OF_ALL) {
            (true, true) => Room::Free,
            (true, false) => Room::NoneForAll,
            (false, _) => Room::NoneForTenant,
        }
    }

    /// Counts a request. One that is there already is replaced, and its pieces stay.
    pub(super) fn put(&self, id: RequestId, tenant: &Tenant, bytes: usize) {
        self.0.lock().replies.entry(id).or_insert_with(|| (tenant.clone(), 0));
        self.add(id, bytes);
    }

    /// Counts a piece of a reply.
    pub(super) fn add(&self, id: RequestId, bytes: usize) {
        let sizes = &mut *self.0.lock();
        let Some((tenant, own)) = sizes.replies.get_mut(&id) else { return };
        *own += bytes as u64;
        sizes.all += bytes as u64;
        *sizes.tenants.entry(tenant.clone()).or_default() += bytes as u64;
    }

    /// Forgets a reply, which is removed.
    pub(super) fn remove(&self, id: RequestId) {
        let sizes = &mut *self.0.lock();
        let Some((tenant, bytes)) = sizes.replies.remove(&id) else { return };
        sizes.all -= bytes;
        if let Some(own) = sizes.tenants.get_mut(&tenant) {
            *own -= bytes;
            if *own == 0 {
                sizes.tenants.remove(&tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_client::{RequestId, Tenant};
    use nsbridge_protocol::Uuid;

    use super::{OF_ALL, OF_TENANT, Quota, Room};

    #[test]
    fn m4_a_tenant_stores_a_bounded_number_of_bytes() {
        let quota = Quota::default();
        let [one, other] = ["a", "b"].map(|name| name.parse::<Tenant>().unwrap());
        let id = |n: u128| RequestId(Uuid::from_u128(n));
        let part = (OF_TENANT / 64) as usize;
        for n in 0..64 {
            assert_eq!(quota.room(&one), Room::Free);
            quota.put(id(n), &one, part / 2);
            quota.add(id(n), part / 2);
        }
        assert_eq!([&one, &other].map(|it| quota.room(it)), [Room::NoneForTenant, Room::Free]);
        // What was never stored, or is removed, is not given back.
        quota.remove(id(99));
        assert_eq!(quota.room(&one), Room::NoneForTenant);
        quota.remove(id(0));
        quota.remove(id(0));
        assert_eq!(quota.room(&one), Room::Free);
        quota.put(id(100), &"c".parse().unwrap(), OF_ALL as usize);
        assert_eq!(quota.room(&one), Room::NoneForAll);
        quota.remove(id(100));
        (0..64).for_each(|n| quota.remove(id(n)));
        let sizes = quota.0.lock();
        assert_eq!((sizes.all, sizes.tenants.len(), sizes.replies.len()), (0, 0, 0));
    }
}
