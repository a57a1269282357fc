//! Reply, as its caller reads it.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use nsbridge_protocol::{AttemptNo, ErrorCode, Fingerprint, RequestId, Revision, Summary};
use serde::de::DeserializeOwned;
use tokio::task::coop;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::DropGuard;

use crate::error::{Error, Result};
use crate::inbox::ReplyEvent;
use crate::pending::Progress;
use crate::router::{Entry, Router};

/// Minimum time that a caller waits before it receives [`Event::Waiting`].
const MIN_WAIT: Duration = Duration::from_secs(1);

/// Event of a reply.
///
/// A later version may have more kinds. A caller that ignores a kind it does not know still reads the
/// whole reply.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
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
    /// An unsealed hint: a worker refuses the request, or the request waits for a key or a revision.
    /// Any publisher on the broker may have sent it, so the client keeps waiting for the reply.
    Hint(ErrorCode),
    /// The reply is complete. No event follows.
    Done(Summary),
}

/// Reply in progress. Dropping it cancels the request.
///
/// The pieces wait in memory for their caller, however slowly it reads: a reply has at most 8 MiB, and
/// the client keeps all of it until it is complete in any case. A slow caller holds up no other reply.
///
/// A reply is a [`Stream`] of its events. [`next`](Self::next) reads them without an extension trait,
/// and [`collect`](Self::collect) reads them to the end.
///
/// ```
/// use nsbridge_client::{Event, Reply, TextPiece};
///
/// async fn print(mut reply: Reply<TextPiece>) -> nsbridge_client::Result<()> {
///     while let Some(event) = reply.next().await {
///         match event? {
///             Event::Piece(piece) => print!("{}", piece.text),
///             Event::Restarted { kept } => println!("[only the first {kept} tokens stand]"),
///             Event::Done(summary) => println!("[{} tokens]", summary.usage.output_tokens),
///             _ => {}
///         }
///     }
///     Ok(())
/// }
/// ```
pub struct Reply<O> {
    id: RequestId,
    entry: Entry,
    router: Arc<Router>,
    /// Keeps the client, and thus the consumer of the reply queue, alive.
    _open: Arc<DropGuard>,
    deadline: Instant,
    hint: Option<ErrorCode>,
    /// Time of the last [`Event::Waiting`].
    told: Option<Instant>,
    /// Time since which the caller waits for the next event.
    since: Option<Instant>,
    /// Wakes the caller at the deadline, or when the silence has lasted long enough.
    timer: Pin<Box<Sleep>>,
    over: bool,
    output: PhantomData<fn() -> O>,
}

impl<O: DeserializeOwned> Reply<O> {
    pub(crate) fn new(
        entry: Entry,
        router: Arc<Router>,
        open: Arc<DropGuard>,
        deadline: Instant,
    ) -> Self {
        let (hint, told, since, over, output) = (None, None, None, false, PhantomData);
        let timer = Box::pin(sleep_until(deadline));
        let (id, _open) = (entry.lock().id, open);
        Self { id, entry, router, _open, deadline, hint, told, since, timer, over, output }
    }

    /// Returns a handle with which the request can be canceled while its reply is read.
    pub(crate) fn running(&self) -> Running {
        Running { router: self.router.clone(), entry: self.entry.clone() }
    }

    /// Returns the request id, which is safe to log.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the number of sealed bytes sent and received for this request.
    pub fn sealed_bytes(&self) -> u64 {
        self.progress().sealed
    }

    /// Returns the time since the last frame of a worker, heartbeats included.
    pub fn silence(&self) -> Duration {
        self.entry.lock().heard().elapsed()
    }

    /// Returns the revision of the model that produced the pieces so far; before the first piece,
    /// that of the stream that opened last. `None` before a worker has opened the request, or if
    /// its worker knows no revision.
    pub fn revision(&self) -> Option<Revision> {
        self.progress().revision
    }

    /// Returns the fingerprint of the worker that produced the last piece; `None` before the first
    /// piece, or if its handler has no fingerprint. A [`ResumePoint`](crate::ResumePoint) needs it.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.progress().fingerprint
    }

    /// Returns the attempt that produced the last piece; `None` before the first piece. Another value
    /// than before means that another worker, or another delivery, continued the reply.
    pub fn attempt(&self) -> Option<AttemptNo> {
        self.progress().attempt
    }

    fn progress(&self) -> Progress {
        self.entry.lock().progress()
    }

    /// Returns the next event; `None` after the last one, which is [`Event::Done`] or an error.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Event<O>>> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Event<O>>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let event = std::task::ready!(self.poll_wait(context));
        self.since = None;
        self.over = matches!(event, Ok(Event::Done(_)) | Err(_));
        if self.over {
            self.leave();
        }
        Poll::Ready(Some(event))
    }

    /// Cancels the request and notifies its workers. No further event comes.
    pub fn cancel(&mut self) {
        self.over = true;
        self.leave();
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

    fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<Result<Event<O>>> {
        let waiting = self.router.timing().waiting;
        // A caller that has many pieces to read leaves its thread to other tasks in between.
        let turn = std::task::ready!(coop::poll_proceed(context));
        loop {
            let (event, heard) = {
                let mut entry = self.entry.lock();
                (entry.poll_event(context), entry.heard())
            };
            if let Poll::Ready(event) = event {
                turn.made_progress();
                return Poll::Ready(event.map_or(Err(Error::Closed), |event| self.read(event)));
            }
            let now = Instant::now();
            if now >= self.deadline {
                return Poll::Ready(Err(self.too_late()));
            }
            let since = *self.since.get_or_insert(now);
            // Heartbeats count as signs of life, so the time is read again after each wait.
            let told = self.told.map_or(heard, |told| told.max(heard));
            // A caller that comes back after a while is not told at once.
            let silence = (told + waiting).max(since + waiting.min(MIN_WAIT));
            if now >= silence {
                self.told = Some(now);
                return Poll::Ready(Ok(Event::Waiting));
            }
            self.timer.as_mut().reset(self.deadline.min(silence));
            std::task::ready!(self.timer.as_mut().poll(context));
        }
    }

    fn read(&mut self, event: ReplyEvent) -> Result<Event<O>> {
        Ok(match event {
            ReplyEvent::Piece(piece) => {
                Event::Piece(serde_json::from_slice(&piece).map_err(Error::Piece)?)
            }
            ReplyEvent::Restarted { kept } => Event::Restarted { kept },
            ReplyEvent::Done(summary) => Event::Done(summary),
            ReplyEvent::Failed(failure) => return Err(Error::of(failure)),
            ReplyEvent::Hint(code) => {
                self.hint = Some(code);
                Event::Hint(code)
            }
        })
    }

    fn too_late(&self) -> Error {
        let Progress { pieces, gap, .. } = self.progress();
        if gap { Error::Truncated { pieces } } else { Error::Deadline { pieces, hint: self.hint } }
    }
}

impl<O: DeserializeOwned> Stream for Reply<O> {
    type Item = Result<Event<O>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(context)
    }
}

impl<O> Reply<O> {
    /// Cancels the request, unless it is over, and drops the pieces that were not read.
    fn leave(&self) {
        self.router.cancel(&self.entry);
        self.entry.lock().discard();
    }
}

impl<O> Drop for Reply<O> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Handle of a request that may still run.
#[derive(Clone)]
pub(crate) struct Running {
    router: Arc<Router>,
    entry: Entry,
}

impl Running {
    /// Cancels the request. Has no effect if it is over.
    pub(crate) fn cancel(&self) {
        self.router.cancel(&self.entry);
    }

    /// Returns true if the request has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.entry.lock().is_over()
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

impl<O> fmt::Debug for Reply<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("id", &self.id).finish_non_exhaustive()
    }
}
