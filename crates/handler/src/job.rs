//! One request, as its handler sees it.

use std::sync::Arc;
use std::time::SystemTime;

use nsbridge_protocol::{AttemptNo, Pieces, RequestId, Tenant, TraceParent};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::transcript::Writer;
use crate::{Emitter, Stop};

/// Request in progress: accepts the pieces of the reply and delivers stop signals.
#[derive(Debug)]
pub struct Job<O> {
    info: JobInfo,
    emitter: Emitter<O>,
    writer: Writer,
    offered: Option<Pieces>,
    resumed: Vec<O>,
}

/// Information about a request that its handler may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInfo {
    /// Request id, safe to log.
    pub id: RequestId,
    /// Number of this attempt.
    pub attempt: AttemptNo,
    /// Seed from which all randomness must be derived.
    pub seed: u64,
    /// Time at which the client sealed the request: the date that a chat template may mention.
    pub submitted_at: SystemTime,
    /// Tenant of the request.
    pub tenant: Tenant,
    /// Scope of caches, derived from the tenant and the key that sealed the request. A result
    /// computed for one scope must not affect another scope, not even as a shorter latency.
    pub scope: Arc<str>,
    /// Account that is charged for the work where requests compete: the tenant if the key proves
    /// the tenant, else the key. A handler that shares time between callers shares it between
    /// accounts.
    pub account: Arc<str>,
    /// Time by which the request must be finished.
    pub deadline: SystemTime,
    /// Parent span of the handler's own spans; `None` outside of a worker.
    pub trace: Option<TraceParent>,
}

impl<O: Serialize + DeserializeOwned> Job<O> {
    pub(crate) fn new(info: JobInfo, writer: Writer, offered: Option<Pieces>) -> Self {
        let emitter = Emitter::new(writer.clone());
        Self { info, emitter, writer, offered, resumed: Vec::new() }
    }

    /// Returns the information about the request.
    pub fn info(&self) -> &JobInfo {
        &self.info
    }

    /// Sends a piece. Waits while the client is too far behind.
    ///
    /// # Errors
    ///
    /// Returns the reason to stop if the call must end. Pass it on with `?`.
    pub async fn emit(&mut self, piece: O) -> Result<(), Stop> {
        self.emitter.emit(&piece).await
    }

    /// Checks for a stop, for long stretches without a piece.
    ///
    /// # Errors
    ///
    /// Returns the reason to stop if the call must end. Pass it on with `?`.
    pub fn check(&self) -> Result<(), Stop> {
        self.emitter.check()
    }

    /// Waits until the call must stop, and returns the reason.
    pub async fn stopped(&self) -> Stop {
        self.emitter.stopped().await
    }

    /// Returns the pieces that the client already has from an earlier attempt.
    ///
    /// A handler that calls this must continue after these pieces. A handler that never calls it
    /// starts over from the first piece. That is slower and equally correct, because the client
    /// compares the pieces.
    pub fn resumed(&mut self) -> &[O] {
        if let Some(offered) = self.offered.take() {
            let decoded: Result<Vec<O>, _> =
                offered.pieces.iter().map(|piece| serde_json::from_slice(piece)).collect();
            // Pieces that do not decode as this type are discarded: the handler starts over.
            if let Ok(pieces) = decoded {
                self.writer.resume(&offered);
                self.resumed = pieces;
            }
        }
        &self.resumed
    }

    /// Declares the maximum number of pieces of the reply, those of [`resumed`](Self::resumed)
    /// included.
    ///
    /// A worker that drains hands over at once a job that cannot end within its grace period.
    /// Without a declared maximum the job runs until the end of the grace period and is then handed
    /// over.
    pub fn at_most(&mut self, pieces: usize) {
        self.writer.at_most(pieces);
    }

    /// Returns a handle for an engine's own thread.
    pub fn emitter(&self) -> Emitter<O> {
        self.emitter.clone()
    }
}
