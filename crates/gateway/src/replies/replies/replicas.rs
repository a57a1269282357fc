//! Replies of other replicas: found, continued, canceled; and those that this one hands over.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nsbridge_base::chain;
use nsbridge_protocol::RequestId;
use nsbridge_store::StoreError;
use tokio::time::{Instant, interval, timeout};

use super::{Entry, Replies};
use crate::replies::reply_log::{Change, Ending};
use crate::replies::shared::Shared;
use crate::text::error::{ApiError, Result};

/// Interval at which a gateway looks for cancels of other replicas.
const TICK: Duration = Duration::from_secs(2);

/// Number of ticks between two renewals of the lease.
const BEAT: u64 = 5;

/// Number of ticks between two deletions of old replies.
const SWEEP: u64 = 30;

/// Time for the last writes of a gateway that ends.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// Shares a change of a reply.
pub(super) fn note(shared: &Arc<Shared>, entry: &Entry, change: &Change<'_>) {
    let (log, id) = (&entry.log, entry.record.id);
    match change {
        Change::Piece { fingerprint: Some(fingerprint), .. } => {
            let mut marked = entry.marked.lock();
            if *marked != Some(*fingerprint) {
                *marked = Some(*fingerprint);
                shared.mark(id, *fingerprint);
            }
        }
        Change::Piece { .. } | Change::Restarted { .. } => {}
        Change::Ended(_) if entry.is_interrupted_by(change) => shared.give_up(id, log.pieces()),
        Change::Ended(ending) => shared.end(id, log.pieces(), ending),
    }
}

impl Replies {
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Reads a reply that this process does not know.
    pub(super) async fn elsewhere(self: &Arc<Self>, id: RequestId) -> Result<Option<Arc<Entry>>> {
        let Some(shared) = &self.shared else { return Ok(None) };
        let Some(found) = shared.get(id).await.map_err(|error| away(&error))? else {
            return Ok(None);
        };
        let ended = found.kept.ending.is_some();
        let entry = Entry::restored(found.kept, true);
        if ended {
            self.known.lock().insert(&entry);
        } else if entry.record.expires_at <= SystemTime::now() {
            let late = ApiError::timeout("the reply was not complete at its deadline");
            entry.log.end(&Ending::Failed(late), |_| ());
        } else {
            // Nothing in this process reads it.
            entry.log.cancel();
            *entry.owner.lock() = Some(found.owner);
        }
        Ok(Some(entry))
    }

    /// Returns the reply of another replica that a retry with this hash repeats.
    pub(super) async fn joined_elsewhere(
        self: &Arc<Self>,
        join: &[u8; 32],
    ) -> Result<Option<Arc<Entry>>> {
        let Some(shared) = &self.shared else { return Ok(None) };
        let Some(id) = shared.joined(join).await.map_err(|error| away(&error))? else {
            return Ok(None);
        };
        // The name that led to it is not sealed.
        let found = self.elsewhere(id).await?;
        Ok(found.filter(|entry| entry.record.join == *join))
    }

    /// Continues a reply in the background whose replica is gone; other replies are returned as
    /// they are.
    pub(super) async fn take_over_lost(self: &Arc<Self>, entry: Arc<Entry>) -> Result<Arc<Entry>> {
        let owner = entry.owner.lock().clone();
        let (Some(shared), Some(owner)) = (&self.shared, owner) else { return Ok(entry) };
        let waits = entry.record.background && entry.log.ending().is_none();
        if !waits || shared.is_alive(&owner).await.map_err(|error| away(&error))? {
            return Ok(entry);
        }
        tracing::info!(request = %entry.record.id, "continuing a reply of a replica that is gone");
        self.go_on(&entry, None, None).await?;
        let known = self.known.lock().entries.get(&entry.record.id).cloned();
        Ok(known.unwrap_or(entry))
    }

    /// Returns true if another replica has ended a reply that this one had before its restart.
    pub(super) async fn ended_elsewhere(&self, entry: &Arc<Entry>) -> bool {
        let Some(shared) = &self.shared else { return false };
        let found = match shared.get(entry.record.id).await {
            Ok(found) => found,
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(error, "a reply of the last process cannot be looked up");
                None
            }
        };
        let Some(found) = found.filter(|found| found.kept.ending.is_some()) else { return false };
        self.known.lock().insert(&Entry::restored(found.kept, true));
        true
    }

    /// Stops a reply in the background, whichever replica computes it, and waits for its end.
    ///
    /// # Errors
    ///
    /// Returns an error if the other replicas cannot be told.
    pub(crate) async fn stop(&self, entry: &Arc<Entry>) -> Result<()> {
        if entry.log.ending().is_some() {
            return Ok(());
        }
        if let Some(shared) = &self.shared {
            shared.cancel(entry.record.id).await.map_err(|error| away(&error))?;
        }
        if entry.is_live() {
            entry.log.cancel();
            // The end comes from the task that reads the reply.
            let _ = entry.log.reader().whole().await;
        } else {
            self.end(entry, &Ending::Failed(ApiError::cancelled()));
            self.known.lock().insert(entry);
        }
        Ok(())
    }

    /// Renews the lease, obeys cancels of other replicas, and deletes old replies, until it is
    /// dropped.
    pub(crate) async fn upkeep_shared(self: Arc<Self>) {
        let Some(shared) = self.shared.clone() else { return };
        let mut tick = interval(TICK);
        for turn in 1.. {
            tick.tick().await;
            if turn % BEAT == 0 {
                warn(shared.beat().await, "the lease of this replica cannot be renewed");
            }
            self.obey_cancels(&shared).await;
            if turn % SWEEP == 0 {
                let (shared, limit) = (shared.clone(), self.times.timeout + self.times.keep);
                tokio::spawn(async move {
                    let swept = shared.sweep(limit).await;
                    let swept = swept.and(shared.sweep_notices(limit).await);
                    warn(swept, "old replies cannot be deleted from the shared store");
                });
            }
        }
    }

    async fn obey_cancels(&self, shared: &Shared) {
        let of = |entry: &&Arc<Entry>| entry.record.background && entry.is_live();
        let mine: Vec<_> = self.known.lock().entries.values().filter(of).cloned().collect();
        if mine.is_empty() {
            return;
        }
        match shared.cancels().await {
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
    pub(crate) async fn release(&self) {
        let Some(shared) = &self.shared else { return };
        let began = Instant::now();
        {
            let known = self.known.lock();
            let live = known.entries.values().filter(|entry| entry.is_live());
            live.for_each(|entry| entry.log.release());
        }
        self.driving.close();
        let last = async {
            self.driving.wait().await;
            shared.flush().await;
            warn(shared.leave().await, "the lease of this replica cannot be ended");
        };
        if timeout(LAST_WRITES, last).await.is_err() {
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
fn away(error: &StoreError) -> ApiError {
    tracing::error!(error = chain(error), "the shared store cannot be reached");
    let message = "the replies of other replicas cannot be read";
    ApiError::unavailable(message, Duration::from_secs(5)).coded("store_unavailable")
}
