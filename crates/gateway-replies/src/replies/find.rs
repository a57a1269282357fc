//! Replies that are found by their id, in memory or in a store.

use std::sync::Arc;
use std::time::SystemTime;

use nsbridge_gateway_access::Caller;
use nsbridge_protocol::RequestId;
use tokio::time::Instant;

use super::{Entry, PUBLISH_TIMEOUT, Replies, late, unreadable};
use crate::failure::{Failure, Result};
use crate::reply_end::ReplyEnd;
use crate::reply_log::{Reader, ReplyLog};
use crate::store::{ReplyStore, Unstored};

impl Replies {
    /// Returns a reply of the caller's key.
    ///
    /// # Errors
    ///
    /// Returns an error if there is none, or if another key has it.
    pub async fn find(
        self: &Arc<Self>,
        id: Option<RequestId>,
        caller: &Caller,
        name: &str,
    ) -> Result<Arc<Entry>> {
        let none = || {
            let name: String = name.chars().take(100).collect();
            Failure::not_found(format!("there is no response `{name}`"))
        };
        let id = id.ok_or_else(none)?;
        let known = self.table.lock().entries.get(&id).cloned();
        let entry = match known {
            Some(entry) => Some(entry),
            None => self.load(id).await?,
        };
        let own = |entry: &Arc<Entry>| {
            entry.record.key == caller.id.to_string() && entry.record.tenant == caller.tenant
        };
        let entry = entry.filter(own).ok_or_else(none)?;
        self.take_over_lost(entry).await
    }

    /// Reads a reply that is only in a store.
    async fn load(&self, id: RequestId) -> Result<Option<Arc<Entry>>> {
        let mut failed = false;
        for store in self.stores() {
            match self.load_from(store, id).await {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(_) => failed = true,
            }
        }
        if failed { Err(unreadable()) } else { Ok(None) }
    }

    /// Reads a reply of a store into the table. One that another replica may compute is not put there.
    pub(super) async fn load_from(
        &self,
        store: &dyn ReplyStore,
        id: RequestId,
    ) -> std::result::Result<Option<Arc<Entry>>, Unstored> {
        // It may be removed while it is read.
        let removal = self.table.lock().removal(id);
        let Some(stored) = store.load(id).await? else { return Ok(None) };
        let entry = Entry::restored(stored, removal);
        if entry.log.end().is_none() {
            // Nothing in this process reads it.
            entry.log.cancel();
            if entry.elsewhere {
                if entry.record.expires_at <= SystemTime::now() {
                    entry.log.end_with(ReplyEnd::Failed(late()));
                }
                let is_removed = *entry.removal.lock();
                return Ok((!is_removed).then_some(entry));
            }
        }
        Ok(self.insert_found(&entry, false))
    }

    /// Puts a reply of a store into the table, and returns the entry that the table has then. One
    /// that was removed in the meantime is not put there, and one of an id that the table has only if
    /// `replaces` is true.
    pub(super) fn insert_found(&self, entry: &Arc<Entry>, replaces: bool) -> Option<Arc<Entry>> {
        let is_removed = entry.removal.lock();
        if *is_removed {
            return None;
        }
        let mut table = self.table.lock();
        // Another connection may have read it, and continued it, in the meantime.
        let other = table.entries.get(&entry.record.id).filter(|_| !replaces);
        if let Some(other) = other {
            return Some(other.clone());
        }
        table.insert(entry);
        Some(entry.clone())
    }

    /// Returns a reader of a reply. A reply that was interrupted by a restart of the gateway, by
    /// the loss of its last connection, or that another replica computed, is continued.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be submitted, or if the caller has reached a limit.
    pub async fn read(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        caller: &Caller,
    ) -> Result<(Arc<ReplyLog>, Reader)> {
        let interrupted = match entry.log.end() {
            None => entry.log.is_cancelled(),
            Some(ReplyEnd::Done(_)) => false,
            Some(ReplyEnd::Failed(error)) => {
                error.code() == "cancelled" && !entry.record.background
            }
        };
        if interrupted {
            // The limits of a caller are those of each replica.
            let reservation = self.reserve(caller, entry.record.tokens)?;
            return self.go_on(entry, Some(reservation), Some(PUBLISH_TIMEOUT)).await;
        }
        Ok((entry.log.clone(), entry.log.reader()))
    }

    /// Continues the replies that the last process left without an end.
    pub async fn recover(self: &Arc<Self>) -> usize {
        let Some(disk) = &self.stores.disk else { return 0 };
        let (mut count, now) = (0, SystemTime::now());
        for id in disk.open_replies().await {
            // What cannot be read is in the log, and is continued when its client asks for it.
            let Ok(Some(entry)) = self.load_from(disk, id).await else { continue };
            if entry.log.end().is_some() || self.adopt_shared_end(&entry).await {
                continue;
            }
            if entry.record.expires_at <= now {
                self.end(&entry, ReplyEnd::Failed(late()));
                continue;
            }
            if !entry.record.background {
                // Its client is gone; a retry or a resume continues it.
                *entry.ended.lock() = Some(Instant::now());
                continue;
            }
            count += 1;
            let replies = self.clone();
            // The gateway serves in the meantime: the broker may be away.
            self.driving.spawn(async move {
                if let Err(error) = replies.go_on(&entry, None, None).await {
                    tracing::warn!(%error, "a reply cannot be continued");
                }
            });
        }
        count
    }
}
