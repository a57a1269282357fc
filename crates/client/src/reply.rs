//! Reply, as its caller reads it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_protocol::{ErrorCode, RequestId, Revision, Summary};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::client::Client;
use crate::entry::{INBOX, Note};
use crate::error::{Error, Result};
use crate::router::Router;

/// Time of silence after which the caller receives [`Event::Waiting`].
const SILENCE: Duration = Duration::from_secs(15);

/// Event of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<O> {
    /// The next piece.
    Piece(O),
    /// A later attempt differs. Of the pieces so far only the first `kept` stand.
    Restarted {
        /// Number of pieces that stand.
        kept: usize,
    },
    /// No frame arrived for 15 seconds. The request may still be waiting for a worker.
    Waiting,
    /// An unsealed hint that the request could not be opened. Any publisher on the broker may have
    /// sent it, so the client keeps waiting for the reply.
    Hint(ErrorCode),
    /// The reply is complete. No event follows.
    Done(Summary),
}

/// Reply in progress. Dropping it cancels the request.
pub struct Reply<O> {
    id: RequestId,
    inbox: mpsc::Receiver<Note>,
    router: Arc<Router>,
    /// Keeps the client, and thus the consumer of the reply queue, alive.
    _client: Client,
    deadline: Instant,
    hint: Option<ErrorCode>,
    /// Time of the last [`Event::Waiting`].
    told: Option<Instant>,
    over: bool,
    output: PhantomData<fn() -> O>,
}

impl<O: DeserializeOwned> Reply<O> {
    pub(crate) fn new(
        id: RequestId,
        inbox: mpsc::Receiver<Note>,
        router: Arc<Router>,
        client: Client,
        deadline: Instant,
    ) -> Self {
        let (hint, told, over, output) = (None, None, false, PhantomData);
        Self { id, inbox, router, _client: client, deadline, hint, told, over, output }
    }

    /// Returns the request id, which is safe to log.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the number of sealed bytes sent and received for this request.
    pub fn sealed_bytes(&self) -> u64 {
        self.router.progress(self.id).map_or(0, |progress| progress.sealed)
    }

    /// Returns the revision of the model that produced the pieces so far; before the first piece,
    /// that of the stream that opened last. `None` before a worker has opened the request, or if
    /// its worker knows no revision.
    pub fn revision(&self) -> Option<Revision> {
        self.router.progress(self.id)?.revision
    }

    /// Returns the next event; `None` after the last one, which is [`Event::Done`] or an error.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Event<O>>> {
        if self.over {
            return None;
        }
        let event = self.wait().await;
        self.over = matches!(event, Ok(Event::Done(_)) | Err(_));
        if self.over {
            // Has no effect if the worker has ended the request.
            self.router.cancel(self.id);
        }
        Some(event)
    }

    /// Cancels the request and notifies its workers. No further event comes.
    pub fn cancel(&mut self) {
        self.over = true;
        self.router.cancel(self.id);
    }

    /// Waits until the reply is complete, and returns all pieces.
    ///
    /// # Errors
    ///
    /// Returns the error of [`next`](Self::next).
    pub async fn collect(mut self) -> Result<(Vec<O>, Summary)> {
        let mut pieces = Vec::new();
        while let Some(event) = self.next().await {
            match event? {
                Event::Piece(piece) => pieces.push(piece),
                Event::Restarted { kept } => pieces.truncate(kept),
                Event::Done(summary) => return Ok((pieces, summary)),
                Event::Waiting | Event::Hint(_) => {}
            }
        }
        Err(Error::Closed)
    }

    async fn wait(&mut self) -> Result<Event<O>> {
        loop {
            let progress = self.router.progress(self.id);
            let heard = progress.as_ref().map_or_else(Instant::now, |progress| progress.heard);
            let now = Instant::now();
            // Heartbeats count as signs of life, so the time is read again after each wait.
            let told = self.told.map_or(heard, |told| told.max(heard));
            let silence = (told + SILENCE).max(now + Duration::from_secs(1));
            match timeout_at(self.deadline.min(silence), self.inbox.recv()).await {
                Ok(Some(note)) => return self.read(note),
                Ok(None) if progress.is_none() => return Err(Error::Closed),
                Ok(None) => return Err(Error::SlowConsumer { limit: INBOX }),
                Err(_) if Instant::now() >= self.deadline => return Err(self.too_late()),
                Err(_) => {
                    let heard = self.router.progress(self.id).map(|progress| progress.heard);
                    let quiet = |since: Instant| since.elapsed() >= SILENCE;
                    if heard.is_none_or(quiet) && self.told.is_none_or(quiet) {
                        self.told = Some(Instant::now());
                        return Ok(Event::Waiting);
                    }
                }
            }
        }
    }

    fn read(&mut self, note: Note) -> Result<Event<O>> {
        Ok(match note {
            Note::Piece(piece) => {
                Event::Piece(serde_json::from_slice(&piece).map_err(Error::Piece)?)
            }
            Note::Restarted { kept } => Event::Restarted { kept },
            Note::Done(summary) => Event::Done(summary),
            Note::Failed(failure) => {
                return Err(Error::Failed { code: failure.code, message: failure.message });
            }
            Note::Hint(code) => {
                self.hint = Some(code);
                Event::Hint(code)
            }
        })
    }

    fn too_late(&self) -> Error {
        let progress = self.router.progress(self.id);
        let (pieces, gap) = progress.map_or((0, false), |now| (now.pieces, now.gap));
        if gap { Error::Truncated { pieces } } else { Error::Deadline { pieces, hint: self.hint } }
    }
}

impl<O> Drop for Reply<O> {
    fn drop(&mut self) {
        // Has no effect if the request is over.
        self.router.cancel(self.id);
    }
}

impl<O> fmt::Debug for Reply<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("id", &self.id).finish_non_exhaustive()
    }
}
