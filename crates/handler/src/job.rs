//! One request, as its handler sees it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nsbridge_protocol::{AttemptNo, Pieces, RequestId, Tenant, TraceParent};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::emitter::Emitter;
use crate::transcript::{Stop, Writer};

/// One call of a [`Handler`](crate::Handler) for a request: accepts the pieces of the reply and
/// delivers stop signals.
///
/// A request may have several calls, each with a `Job` of its own. The *job* of `docs/protocol.md`
/// is wider.
#[derive(Debug)]
pub struct Job<O>(JobState<O>);

/// One call of an [`AsyncHandler`](crate::AsyncHandler) for a request: accepts the pieces of the
/// reply and delivers stop signals, as [`Job`] does.
#[derive(Debug)]
pub struct AsyncJob<O>(JobState<O>);

/// Information about a request that its handler may use.
///
/// ```
/// use nsbridge_handler::{JobInfo, RequestId};
///
/// let mut info = JobInfo::new(RequestId::from_bytes([7; 16]), "acme".parse()?, 42);
/// info.scope = "another cache".into();
/// assert_eq!((info.seed, info.tenant.as_str()), (42, "acme"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobInfo {
    /// Request id, safe to log.
    pub id: RequestId,
    /// Number of this attempt, 1 for the first one. The numbers have gaps, two attempts may share
    /// one, and the pieces must not depend on it.
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

impl JobInfo {
    /// Creates the information about the first attempt at a request, which was sealed now and must be
    /// finished within an hour. Scope and account are the tenant. All fields are public, so that a
    /// caller can set them.
    pub fn new(id: RequestId, tenant: Tenant, seed: u64) -> Self {
        let now = SystemTime::now();
        let scope: Arc<str> = tenant.as_str().into();
        Self {
            id,
            attempt: AttemptNo(1),
            seed,
            submitted_at: now,
            tenant,
            account: scope.clone(),
            scope,
            deadline: now + Duration::from_secs(3600),
            trace: None,
        }
    }
}

impl<O: Serialize + DeserializeOwned> Job<O> {
    pub(crate) fn new(info: JobInfo, writer: Writer, offered: Option<Pieces>) -> Self {
        Self(JobState::new(info, writer, offered))
    }

    /// Returns the information about the request.
    pub fn info(&self) -> &JobInfo {
        &self.0.info
    }

    /// Sends a piece. Blocks the thread while more than 32 KiB of the reply are unsent, because the
    /// broker does not confirm the earlier frames. After `Ok` the piece is in the buffer of the
    /// reply; the client may not have it yet.
    ///
    /// # Errors
    ///
    /// Returns the reason to stop if the call must end. Pass it on with `?`.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a piece that was sent is gone, in both jobs"
    )]
    pub fn emit(&mut self, piece: O) -> Result<(), Stop> {
        self.0.emitter.emit_blocking(&piece)
    }

    /// Checks for a stop, for long stretches without a piece.
    ///
    /// # Errors
    ///
    /// Returns the reason to stop if the call must end. Pass it on with `?`.
    pub fn check(&self) -> Result<(), Stop> {
        self.0.emitter.check()
    }

    /// Returns the pieces that the client already has from an earlier attempt, and promises to
    /// continue after them.
    ///
    /// Call it before the first piece is emitted. A first call after that returns nothing, because the
    /// call has already begun the reply anew. Each further call returns the same as the first.
    ///
    /// A handler that never calls this starts over from the first piece. That is slower and equally
    /// correct, because the client compares the pieces.
    pub fn accept_resume(&mut self) -> &[O] {
        self.0.accept_resume()
    }

    /// Declares the maximum number of pieces of the reply, those of
    /// [`accept_resume`](Self::accept_resume) included.
    ///
    /// A worker that drains hands over at once a job that cannot end within its grace period.
    /// Without a declared maximum the job runs until the end of the grace period and is then handed
    /// over.
    pub fn set_max_pieces(&mut self, pieces: usize) {
        self.0.writer.set_max_pieces(pieces);
    }

    /// Declares the number of tokens of the prompt, for the usage of a reply that a layer around the
    /// handler ends, such as a judge. A handler without such a layer needs only the usage of its
    /// [`Finish`](crate::Finish).
    pub fn set_input_tokens(&mut self, tokens: u64) {
        self.0.writer.set_input_tokens(tokens);
    }

    /// Returns the encoded pieces of [`accept_resume`](Self::accept_resume) without the promise to
    /// continue after them; `None` if there are none, or if they were accepted.
    pub fn offered(&self) -> Option<&Pieces> {
        self.0.offered.as_ref()
    }

    /// Returns a handle for another thread that makes the pieces.
    pub fn emitter(&self) -> Emitter<O> {
        self.0.emitter.clone()
    }
}

impl<O: Serialize + DeserializeOwned> AsyncJob<O> {
    pub(crate) fn new(info: JobInfo, writer: Writer, offered: Option<Pieces>) -> Self {
        Self(JobState::new(info, writer, offered))
    }

    /// Returns the information about the request.
    pub fn info(&self) -> &JobInfo {
        &self.0.info
    }

    /// Sends a piece. Waits while more than 32 KiB of the reply are unsent, because the broker does
    /// not confirm the earlier frames. After `Ok` the piece is in the buffer of the reply; the client
    /// may not have it yet.
    ///
    /// # Errors
    ///
    /// Returns the reason to stop if the call must end. Pass it on with `?`.
    pub async fn emit(&mut self, piece: O) -> Result<(), Stop> {
        self.0.emitter.emit(&piece).await
    }

    /// Checks for a stop, for long stretches without a piece.
    ///
    /// # Errors
    ///
    /// Returns the reason to stop if the call must end. Pass it on with `?`.
    pub fn check(&self) -> Result<(), Stop> {
        self.0.emitter.check()
    }

    /// Waits until the call must stop, and returns the reason.
    pub async fn stopped(&self) -> Stop {
        self.0.emitter.stopped().await
    }

    /// Returns the pieces that the client already has from an earlier attempt, and promises to
    /// continue after them.
    ///
    /// Call it before the first piece is emitted. A first call after that returns nothing, because the
    /// call has already begun the reply anew. Each further call returns the same as the first.
    ///
    /// A handler that never calls this starts over from the first piece. That is slower and equally
    /// correct, because the client compares the pieces.
    pub fn accept_resume(&mut self) -> &[O] {
        self.0.accept_resume()
    }

    /// Declares the maximum number of pieces of the reply, those of
    /// [`accept_resume`](Self::accept_resume) included.
    ///
    /// A worker that drains hands over at once a job that cannot end within its grace period.
    /// Without a declared maximum the job runs until the end of the grace period and is then handed
    /// over.
    pub fn set_max_pieces(&mut self, pieces: usize) {
        self.0.writer.set_max_pieces(pieces);
    }

    /// Declares the number of tokens of the prompt, for the usage of a reply that a layer around the
    /// handler ends, such as a judge. A handler without such a layer needs only the usage of its
    /// [`Finish`](crate::Finish).
    pub fn set_input_tokens(&mut self, tokens: u64) {
        self.0.writer.set_input_tokens(tokens);
    }

    /// Returns the encoded pieces of [`accept_resume`](Self::accept_resume) without the promise to
    /// continue after them; `None` if there are none, or if they were accepted.
    pub fn offered(&self) -> Option<&Pieces> {
        self.0.offered.as_ref()
    }

    /// Returns a handle for an engine's own thread.
    pub fn emitter(&self) -> Emitter<O> {
        self.0.emitter.clone()
    }
}

/// State that both kinds of job share.
#[derive(Debug)]
struct JobState<O> {
    info: JobInfo,
    emitter: Emitter<O>,
    writer: Writer,
    offered: Option<Pieces>,
    resumed: Vec<O>,
}

impl<O: Serialize + DeserializeOwned> JobState<O> {
    fn new(info: JobInfo, writer: Writer, offered: Option<Pieces>) -> Self {
        let emitter = Emitter::new(writer.clone());
        Self { info, emitter, writer, offered, resumed: Vec::new() }
    }

    fn accept_resume(&mut self) -> &[O] {
        if let Some(offered) = self.offered.take() {
            let decoded: Result<Vec<O>, _> =
                offered.pieces.iter().map(|piece| serde_json::from_slice(piece)).collect();
            // Pieces that do not decode as this type are discarded: the handler starts over.
            if let Ok(pieces) = decoded
                && self.writer.resume(&offered)
            {
                self.resumed = pieces;
            }
        }
        &self.resumed
    }
}
