//! Storage of replies: what another process needs to continue a reply, or to show it again.

#[cfg(test)]
pub(crate) mod testing;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use nsbridge_client::{ModelName, RequestId, Tenant, TextInput};
use nsbridge_gateway_access::{Extent, Priority};
use nsbridge_protocol::Fingerprint;
use serde::{Deserialize, Serialize};

use crate::cost::{prompt_bytes, prompt_tokens};
use crate::reply_end::ReplyEnd;
use crate::reply_log::{Change, RawPiece, ReplyLog};

/// Endpoint whose replies clients read again by their id.
pub(crate) const READ_BY_ID: &str = "response";

/// Request of a reply, with what another process needs to continue it.
#[derive(Clone, Serialize, Deserialize)]
pub struct Record {
    /// Endpoint that received the request.
    pub kind: String,
    /// Id of the request.
    pub id: RequestId,
    /// Seed of the sampling.
    pub seed: u64,
    /// Time at which the request arrived.
    pub created_at: SystemTime,
    /// Deadline of the reply.
    pub expires_at: SystemTime,
    /// Queue of the model.
    pub model: ModelName,
    /// Tenant of the caller.
    pub tenant: Tenant,
    /// Id of the API key.
    pub key: String,
    /// Input of the worker's handler.
    pub input: TextInput,
    /// Body of the request, if clients read the reply again by its id; else empty.
    pub body: String,
    /// Hash by which a retry is recognized.
    #[serde(rename = "join")]
    pub retry_hash: [u8; 32],
    /// Hash of the body.
    #[serde(rename = "content")]
    pub content_hash: [u8; 32],
    /// True if the reply goes on without a connection that reads it.
    pub background: bool,
    /// Number of clients of the queue that submitted the request before.
    pub clients: u16,
    /// Upper bound of the reply's tokens, prompt included.
    #[serde(default)]
    pub tokens: u64,
    /// True for a line of a batch.
    #[serde(default)]
    pub of_batch: bool,
    /// Class of the request in its queue.
    #[serde(default)]
    pub class: Priority,
}

impl Record {
    /// Returns an estimate of the prompt's tokens, which is a part of `tokens`.
    pub fn prompt_tokens(&self) -> u64 {
        prompt_tokens(&self.input)
    }

    /// Returns the size of the request in memory, in bytes.
    pub fn bytes(&self) -> usize {
        /// Record with its allocations.
        const RECORD: usize = 2048;
        let input = &self.input;
        let lists = [&input.prompt_token_ids, &input.stop_token_ids, &input.bad_token_ids];
        let ids: usize = lists.iter().map(|list| 4 * list.len()).sum();
        let values = (&input.tools, &input.chat_template_kwargs, &input.response_format);
        let values = serde_json::to_vec(&values).map_or(0, |text| Extent::of(&text).memory());
        RECORD + self.body.len() + prompt_bytes(input) + ids + 16 * input.logit_bias.len() + values
    }
}

impl fmt::Debug for Record {
    /// Omits the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("id", &self.id).finish_non_exhaustive()
    }
}

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
/// so, before its client has the id. What is stored is sealed, and opens only at its place.
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

    /// Removes a reply. What is noted of it later is not stored.
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
