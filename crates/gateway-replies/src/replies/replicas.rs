//! Replies of other replicas: found, continued, canceled; and those that this one hands over.

use std::sync::Arc;
use std::time::Duration;

use nsbridge_base::chain;
use nsbridge_store::StoreError;
use tokio::time::{Instant, interval, timeout};

use super::{Entry, Replies, unreadable};
use crate::bucket::BucketStore;
use crate::failure::{Failure, Result};
use crate::reply_end::ReplyEnd;
use crate::store::ReplyStore as _;

/// Interval at which a gateway looks for cancels of other replicas.
const TICK_INTERVAL: Duration = Duration::from_secs(2);

/// Number of ticks between two renewals of the lease.
const BEAT_TICKS: u64 = 5;

/// Number of ticks between two deletions of old replies.
const SWEEP_TICKS: u64 = 30;

/// Time for the last writes of a gateway that ends.
const LAST_WRITES_TIMEOUT: Duration = Duration::from_secs(10);

impl Replies {
    /// Returns true if other replicas can continue the replies of this one.
    pub fn is_shared(&self) -> bool {
        self.stores.bucket.is_some()
    }

    /// Returns the reply of another replica that a retry with this hash repeats.
    pub(super) async fn repeated_elsewhere(
        &self,
        retry_hash: &[u8; 32],
    ) -> Result<Option<Arc<Entry>>> {
        let Some(bucket) = &self.stores.bucket else { return Ok(None) };
        let Some(id) = bucket.repeated(retry_hash).await.map_err(|error| away(&error))? else {
            return Ok(None);
        };
        let found = self.load_from(bucket, id).await.map_err(|_| unreadable())?;
        // The name that led to it is not sealed.
        Ok(found.filter(|found| found.record.retry_hash == *retry_hash))
    }

    /// Continues a reply in the background whose replica is gone; other replies are returned as
    /// they are.
    pub(super) async fn take_over_lost(self: &Arc<Self>, entry: Arc<Entry>) -> Result<Arc<Entry>> {
        let owner = entry.owner.lock().clone();
        let (Some(bucket), Some(owner)) = (&self.stores.bucket, owner) else { return Ok(entry) };
        let waits = entry.record.background && entry.log.end().is_none();
        if !waits || bucket.is_alive(&owner).await.map_err(|error| away(&error))? {
            return Ok(entry);
        }
        tracing::info!(request = %entry.record.id, "continuing a reply of a replica that is gone");
        self.go_on(&entry, None, None).await?;
        let known = self.table.lock().entries.get(&entry.record.id).cloned();
        Ok(known.unwrap_or(entry))
    }

    /// Takes over the end that another replica gave to a reply which this one had before its restart.
    /// Returns false if there is none.
    pub(super) async fn adopt_shared_end(&self, entry: &Arc<Entry>) -> bool {
        let Some(bucket) = &self.stores.bucket else { return false };
        let Ok(found) = bucket.load(entry.record.id).await else { return false };
        let Some(found) = found.filter(|found| found.end.is_some()) else { return false };
        self.insert_found(&Entry::restored(found, entry.removal.clone()), true);
        true
    }

    /// Stops a reply in the background, whichever replica computes it, and waits for its end.
    ///
    /// # Errors
    ///
    /// Returns an error if the other replicas cannot be told.
    pub async fn stop(&self, entry: &Arc<Entry>) -> Result<()> {
        if entry.log.end().is_some() {
            return Ok(());
        }
        if let Some(bucket) = &self.stores.bucket {
            bucket.cancel(entry.record.id).await.map_err(|error| away(&error))?;
        }
        if entry.is_live() {
            entry.log.cancel();
            // The end comes from the task that reads the reply.
            let _ = entry.log.reader().whole().await;
        } else {
            self.end(entry, ReplyEnd::Failed(Failure::cancelled()));
            self.insert_found(entry, false);
        }
        Ok(())
    }

    /// Renews the lease, obeys cancels of other replicas, and deletes old replies, until it is
    /// dropped.
    pub async fn upkeep_shared(self: Arc<Self>) {
        let Some(bucket) = self.stores.bucket.clone() else { return };
        let mut tick = interval(TICK_INTERVAL);
        for turn in 1.. {
            tick.tick().await;
            if turn % BEAT_TICKS == 0 {
                warn(bucket.beat().await, "the lease of this replica cannot be renewed");
            }
            self.obey_cancels(&bucket).await;
            if turn % SWEEP_TICKS == 0 {
                let (bucket, times) = (bucket.clone(), self.times);
                tokio::spawn(async move {
                    // What cannot be deleted now is deleted later.
                    let _ = bucket.sweep(times).await;
                });
            }
        }
    }

    async fn obey_cancels(&self, bucket: &BucketStore) {
        let of = |entry: &&Arc<Entry>| entry.record.background && entry.is_live();
        let mine: Vec<_> = self.table.lock().entries.values().filter(of).cloned().collect();
        if mine.is_empty() {
            return;
        }
        match bucket.cancels().await {
            Ok(canceled) => {
                let canceled = |entry: &&Arc<Entry>| canceled.contains(&entry.record.id);
                mine.iter().filter(canceled).for_each(|entry| entry.log.cancel());
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(error, "cancels of other replicas cannot be read");
            }
        }
    }

    /// Gives up all replies so that other replicas can continue them, and ends the lease.
    pub async fn release(&self) {
        let Some(bucket) = &self.stores.bucket else { return };
        let began = Instant::now();
        {
            let table = self.table.lock();
            let live = table.entries.values().filter(|entry| entry.is_live());
            live.for_each(|entry| entry.log.release());
        }
        self.driving.close();
        let last = async {
            self.driving.wait().await;
            bucket.flush().await;
            warn(bucket.leave().await, "the lease of this replica cannot be ended");
        };
        if timeout(LAST_WRITES_TIMEOUT, last).await.is_err() {
            tracing::warn!(
                seconds = began.elapsed().as_secs(),
                "some replies were not handed over"
            );
        }
    }
}

fn warn(done: std::result::Result<(), StoreError>, what: &str) {
    if let Err(error) = done {
        tracing::warn!(error = chain(&error), "{what}");
    }
}

/// Error of a request that needs the shared store while it cannot be reached.
fn away(error: &StoreError) -> Failure {
    tracing::error!(error = chain(error), "the shared store cannot be reached");
    unreadable()
}
