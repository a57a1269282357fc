//! Storage of replies: what another process needs to continue a reply, or to show it again.

#[cfg(test)]
pub(crate) mod testing;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use nsbridge_client::RequestId;
use nsbridge_protocol::Fingerprint;

use crate::record::Record;
use crate::reply_end::ReplyEnd;
use crate::reply_log::{Change, RawPiece, ReplyLog};

/// Reply as it is read back.
#[derive(Debug)]
pub(crate) struct StoredReply {
    pub(crate) record: Record,
    pub(crate) pieces: Vec<Arc<RawPiece>>,
    /// Fingerprint of the worker of the last piece.
    pub(crate) fingerprint: Option<Fingerprint>,
    /// End; `None` if the reply is to be continued.
    pub(crate) end: Option<ReplyEnd>,
    /// Name of the replica that received the request, in a store that replicas share.
    pub(crate) owner: Option<String>,
}

impl StoredReply {
    /// Returns a reply as it continues: a complete one of which pieces are missing has no end, and is
    /// computed again.
    pub(crate) fn new(
        record: Record,
        pieces: Vec<Arc<RawPiece>>,
        fingerprint: Option<Fingerprint>,
        end: Option<ReplyEnd>,
        owner: Option<String>,
    ) -> Self {
        let whole = |end: &ReplyEnd| match end {
            ReplyEnd::Done(summary) => summary.pieces == pieces.len() as u64,
            ReplyEnd::Failed(_) => true,
        };
        let end = end.filter(whole);
        Self { record, pieces, fingerprint, end, owner }
    }
}

/// Times for which replies are computed and kept.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Time limit of a reply.
    pub timeout: Duration,
    /// Time for which a reply is kept after its end.
    pub keep: Duration,
}

/// Failure of a store of replies. Its cause is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store cannot be used")]
pub struct Unstored;

/// Store of replies.
///
/// A store never delays a reply: writes are handed over and made in their order, and a piece that a
/// slow store leaves out is computed again. A request is safe when [`begin`](ReplyStore::begin) says
/// so, before its client has the id. A write goes on when the future that waits for it is dropped.
/// What is stored is sealed, and opens only at its place.
#[async_trait]
pub(crate) trait ReplyStore: fmt::Debug + Send + Sync {
    /// Stores a request. The future ends when it is stored as safely as its endpoint promises.
    ///
    /// # Errors
    ///
    /// The future returns an error if the request cannot be stored.
    fn begin(&self, record: &Record) -> BoxFuture<'static, Result<(), Unstored>>;

    /// Stores a change of a reply that has begun, or what other processes need of it. `log` has the
    /// change already.
    fn note(&self, record: &Record, log: &ReplyLog, change: &Change);

    /// Reads a reply. Pieces after a gap are left out, and a complete reply without all of its pieces
    /// has no end.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read.
    async fn load(&self, id: RequestId) -> Result<Option<StoredReply>, Unstored>;

    /// Removes a reply with all that was noted of it so far. The caller notes nothing later.
    ///
    /// # Errors
    ///
    /// The future returns an error if the store may keep the reply.
    fn remove(&self, record: &Record) -> BoxFuture<'static, Result<(), Unstored>>;

    /// Removes the replies whose time is over.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be used.
    async fn sweep(&self, times: Times) -> Result<(), Unstored>;

    /// Waits until all writes so far have ended.
    async fn flush(&self);
}
