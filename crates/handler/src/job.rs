//! One request, as its handler sees it.

use std::sync::Arc;
use std::time::SystemTime;

use nsbridge_protocol::{AttemptNo, Pieces, RequestId, Tenant, TraceParent};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::transcript::Writer;
use crate::{Emitter, Stop};

/// One request while it is answered: where its pieces go and how it is told to stop.
#[derive(Debug)]
pub struct Job<O> {
    info: JobInfo,
    emitter: Emitter<O>,
    writer: Writer,
    offered: Option<Pieces>,
    resumed: Vec<O>,
}

/// What a handler may know about the request it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInfo {
    /// The request's identifier, fit for logs.
    pub id: RequestId,
    /// Which try this is.
    pub attempt: AttemptNo,
    /// What all randomness must grow from.
    pub seed: u64,
    /// When the client sealed the request: the date a chat template may mention.
    pub submitted_at: SystemTime,
    /// Who it is for.
    pub tenant: Tenant,
    /// Whom it may share with, told by its tenant and the key that it was sealed with: what was
    /// computed for one scope must not be shown to another, not even as a shorter wait.
    pub scope: Arc<str>,
    /// Whom its work is charged to where requests compete: its tenant if its key proves the tenant,
    /// else its key. A handler that shares time between callers shares it between accounts.
    pub account: Arc<str>,
    /// When it must be finished.
    pub deadline: SystemTime,
    /// The span that spans of the handler's own are children of; `None` outside of a worker.
    pub trace: Option<TraceParent>,
}

impl<O: Serialize + DeserializeOwned> Job<O> {
    pub(crate) fn new(info: JobInfo, writer: Writer, offered: Option<Pieces>) -> Self {
        let emitter = Emitter::new(writer.clone());
        Self { info, emitter, writer, offered, resumed: Vec::new() }
    }

    /// What is known about the request.
    pub fn info(&self) -> &JobInfo {
        &self.info
    }

    /// Sends a piece; waits while the client is too far behind.
    ///
    /// # Errors
    ///
    /// The reason to stop, if the call is to end. Pass it on with `?`.
    pub async fn emit(&mut self, piece: O) -> Result<(), Stop> {
        self.emitter.emit(&piece).await
    }

    /// Whether to go on: for long stretches without a piece.
    ///
    /// # Errors
    ///
    /// The reason to stop, if the call is to end. Pass it on with `?`.
    pub fn check(&self) -> Result<(), Stop> {
        self.emitter.check()
    }

    /// Waits until the call is to stop.
    pub async fn stopped(&self) -> Stop {
        self.emitter.stopped().await
    }

    /// The pieces the client already has from an earlier attempt.
    ///
    /// Calling this is the promise to go on after them. A handler that never calls it starts over
    /// from the first piece, which is slower and just as right: the client compares.
    pub fn resumed(&mut self) -> &[O] {
        if let Some(offered) = self.offered.take() {
            let decoded: Result<Vec<O>, _> =
                offered.pieces.iter().map(|piece| serde_json::from_slice(piece)).collect();
            // Pieces of another type's making are as good as none: the handler starts over.
            if let Ok(pieces) = decoded {
                self.writer.resume(&offered);
                self.resumed = pieces;
            }
        }
        &self.resumed
    }

    /// Tells how many pieces the reply has at most, those of [`resumed`](Self::resumed) included.
    ///
    /// A worker that is to leave hands a job over at once that cannot end in the time it has.
    /// Without this it waits for as long as it may, and then hands it over.
    pub fn at_most(&mut self, pieces: usize) {
        self.writer.at_most(pieces);
    }

    /// A handle for an engine's own thread.
    pub fn emitter(&self) -> Emitter<O> {
        self.emitter.clone()
    }
}
