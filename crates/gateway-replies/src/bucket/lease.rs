//! Leases and cancels: what replicas tell each other about the replies that they compute.

use std::time::Duration;

use nsbridge_client::RequestId;
use nsbridge_store::StoreError;

use super::files::{age, cancel_of, id_of};
use super::{BucketStore, NAMES_PER_PAGE, now_ms};

/// Time without a renewal after which a replica is taken for gone.
const LEASE_DURATION: Duration = Duration::from_secs(30);

/// Maximum size of a lease, in bytes.
const MAX_LEASE_BYTES: u64 = 32;

impl BucketStore {
    /// Renews the lease of this replica.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be written.
    pub(crate) async fn beat(&self) -> Result<(), StoreError> {
        let now = now_ms().to_string();
        self.files.put(&lease_of(&self.replica), now.into_bytes()).await
    }

    /// Ends the lease of this replica, whose replies others may continue from now on.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be written.
    pub(crate) async fn leave(&self) -> Result<(), StoreError> {
        self.files.remove(&lease_of(&self.replica)).await
    }

    /// Returns true if a replica has a lease.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    pub(crate) async fn is_alive(&self, replica: &str) -> Result<bool, StoreError> {
        let lease = self.files.get(&lease_of(replica), MAX_LEASE_BYTES).await?;
        let renewed = lease.and_then(|lease| std::str::from_utf8(&lease).ok()?.parse::<u64>().ok());
        let since = renewed.map(|at| Duration::from_millis(now_ms().saturating_sub(at)));
        Ok(since.is_some_and(|since| since < LEASE_DURATION))
    }

    /// Tells the other replicas to stop a reply.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be written.
    pub(crate) async fn cancel(&self, id: RequestId) -> Result<(), StoreError> {
        self.files.put(&cancel_of(id), Vec::new()).await
    }

    /// Returns the replies that replicas have canceled, the oldest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    pub(crate) async fn cancels(&self) -> Result<Vec<RequestId>, StoreError> {
        let names = self.files.names("cancels/", NAMES_PER_PAGE).await?;
        Ok(names.iter().filter_map(|name| id_of(name)).collect())
    }

    /// Deletes the cancels of replies that were created this long ago, and leases that have expired
    /// for as long.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached.
    pub(super) async fn sweep_notices(&self, limit: Duration) -> Result<(), StoreError> {
        for name in self.files.names("cancels/", NAMES_PER_PAGE).await? {
            if id_of(&name).is_none_or(|id| age(id) >= limit) {
                self.files.remove(&name).await?;
            }
        }
        for name in self.files.names("leases/", NAMES_PER_PAGE).await? {
            let lease = self.files.get(&name, MAX_LEASE_BYTES).await?;
            let renewed = lease.and_then(|at| std::str::from_utf8(&at).ok()?.parse::<u64>().ok());
            if renewed.is_none_or(|at| now_ms().saturating_sub(at) >= limit.as_millis() as u64) {
                self.files.remove(&name).await?;
            }
        }
        Ok(())
    }
}

fn lease_of(replica: &str) -> String {
    format!("leases/{replica}")
}
