//! State of one request at its client: merges frames, keeps the events for its caller, addresses
//! workers and decides when to enqueue again.

use std::collections::VecDeque;
use std::fmt;
use std::task::{Context, Poll};

use nsbridge_crypto::{DataKey, RequestHead, Sealed, seal_control};
use nsbridge_protocol::{
    AttemptNo, ControlKind, ErrorCode, Fingerprint, ModelName, Priority, RequestId, Revision,
    StreamId, TraceParent,
};
use tokio::time::Instant;

use crate::envelope::Envelope;
use crate::inbox::{Inbox, ReplyEvent};
use crate::merge::{Merge, Step};
use crate::timing::Timing;

/// Maximum number of workers of one request that receive a cancel at its end.
const MAX_WORKERS: usize = 8;

/// Maximum number of enqueues of a request: the first one and three repeats (rule C6).
const MAX_ENQUEUES: usize = 1 + 3;

/// Control frame to be published.
#[derive(Debug)]
pub(crate) struct ControlMessage {
    pub(crate) request: RequestId,
    /// Routing key.
    pub(crate) key: String,
    pub(crate) frame: Vec<u8>,
    /// Span of the attempt before.
    pub(crate) before: Option<TraceParent>,
}

/// Worker that opened a stream.
#[derive(Debug)]
struct Worker {
    stream: StreamId,
    enqueue: usize,
    /// Control queue of the worker, if its open named one.
    queue: Option<String>,
}

/// Content from which each copy of the request is sealed.
pub(crate) struct Original {
    pub(crate) head: RequestHead,
    /// Class of every copy.
    pub(crate) priority: Priority,
    pub(crate) key: DataKey,
    /// Seed and input as JSON.
    pub(crate) content: Vec<u8>,
    /// Span of the caller.
    pub(crate) trace: TraceParent,
    /// Number of copies that earlier clients enqueued.
    pub(crate) epoch: u16,
}

impl fmt::Debug for Original {
    /// Leaves out what the user wrote.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Original").field("head", &self.head).finish_non_exhaustive()
    }
}

impl Original {
    /// Seals a copy under a fresh salt, so that no worker takes it for an earlier copy.
    pub(crate) fn seal(&self) -> nsbridge_crypto::Result<Sealed> {
        self.key.seal(&self.head, &self.content)
    }

    /// Returns the properties of a copy. `before` is the span of the attempt before it.
    pub(crate) fn envelope(&self, before: Option<TraceParent>) -> Envelope {
        let (head, priority, trace) = (self.head.clone(), self.priority, self.trace);
        Envelope { head, priority, trace, before }
    }
}

/// Progress of a request.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    pub(crate) pieces: usize,
    pub(crate) gap: bool,
    /// Sealed bytes, sent and received.
    pub(crate) sealed: u64,
    /// Revision of the model, as reported by the worker of the pieces so far.
    pub(crate) revision: Option<Revision>,
    /// Fingerprint of the worker of the last piece.
    pub(crate) fingerprint: Option<Fingerprint>,
    /// Attempt that produced the last piece.
    pub(crate) attempt: Option<AttemptNo>,
}

/// Request that waits for its reply, or ended recently.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) id: RequestId,
    /// Routing key that reaches workers that have not opened the request yet.
    model: ModelName,
    /// `None` once the request is over.
    original: Option<Box<Original>>,
    merge: Merge,
    inbox: Inbox,
    /// True once the request has ended. Its pieces stay until its caller has read them.
    over: bool,
    /// Workers that opened a stream most recently and have not ended it.
    workers: VecDeque<Worker>,
    pub(crate) deadline: Instant,
    heard: Instant,
    /// Time at which replies may have been lost with the reply queue. Cleared by the next new
    /// frame.
    disturbed: Option<Instant>,
    /// Time of the last repeated enqueue.
    asked: Option<Instant>,
    /// Span of the attempt that opened last.
    attempt: Option<TraceParent>,
    sealed: u64,
}

impl PendingRequest {
    pub(crate) fn new(original: Original, merge: Merge, deadline: Instant, sealed: u64) -> Self {
        Self {
            id: original.head.id,
            model: original.head.model.clone(),
            original: Some(Box::new(original)),
            // The caller has the pieces of an earlier client.
            inbox: Inbox::after(merge.pieces().len()),
            merge,
            over: false,
            workers: VecDeque::new(),
            deadline,
            heard: Instant::now(),
            disturbed: None,
            asked: None,
            attempt: None,
            sealed,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Returns true if a worker has opened the request and has not handed it back.
    pub(crate) fn is_held(&self) -> bool {
        self.merge.is_held()
    }

    /// Returns the next event for the caller; `None` if none will come, because the request was
    /// canceled. The end comes after the last piece.
    pub(crate) fn poll_event(&mut self, context: &Context<'_>) -> Poll<Option<ReplyEvent>> {
        if let Some(event) = self.inbox.next(self.merge.pieces()) {
            return Poll::Ready(Some(event));
        }
        if self.over {
            return Poll::Ready(None);
        }
        self.inbox.wake_by(context.waker());
        Poll::Pending
    }

    /// Returns the time of the last sign of life.
    pub(crate) fn heard(&self) -> Instant {
        self.heard
    }

    pub(crate) fn progress(&self) -> Progress {
        let (pieces, gap) = (self.merge.pieces().len(), self.merge.has_gap());
        let revision = self.merge.revision().cloned();
        let (fingerprint, attempt) = (self.merge.fingerprint(), self.merge.attempt());
        Progress { pieces, gap, sealed: self.sealed, revision, fingerprint, attempt }
    }

    /// Passes a hint to the caller.
    pub(crate) fn hint(&mut self, code: ErrorCode) {
        if !self.over {
            self.inbox.hint(code);
            self.inbox.wake();
        }
    }

    /// Processes one frame and returns the control frames that answer it. `reply_to` and `span` are
    /// used only if the frame opens a new stream: neither is sealed, and any publisher may have
    /// replayed the frame.
    pub(crate) fn accept(
        &mut self,
        frame: &[u8],
        reply_to: Option<&str>,
        span: Option<TraceParent>,
    ) -> Vec<ControlMessage> {
        let (heard, newest) = (self.merge.heard(), self.merge.newest());
        let steps = self.merge.accept(frame);
        if self.merge.heard() != heard {
            self.sealed += frame.len() as u64;
            self.heard = Instant::now();
            self.disturbed = None;
        }
        let opened = self.merge.newest().filter(|opened| Some(*opened) != newest);
        if let Some((stream, enqueue)) = opened {
            self.remember(Worker { stream, enqueue, queue: reply_to.map(str::to_owned) });
        }
        let mut messages = Vec::new();
        let tells = |step: &Step| matches!(step, Step::Tell { .. });
        if !steps.iter().all(tells) {
            self.inbox.wake();
        }
        for step in steps {
            match step {
                Step::Tell { enqueue, kind, body } => {
                    let key = reply_to.unwrap_or(self.model.as_str());
                    messages.extend(self.message(key, enqueue, kind, &body));
                }
                step => messages.extend(self.pass(step)),
            }
        }
        // A later attempt receives this span.
        self.attempt = span.filter(|_| opened.is_some()).or(self.attempt);
        messages
    }

    fn remember(&mut self, worker: Worker) {
        let merge = &self.merge;
        self.workers.retain(|known| !merge.has_ended(known.stream));
        if self.workers.len() == MAX_WORKERS {
            self.workers.pop_front();
        }
        self.workers.push_back(worker);
    }

    /// Passes a step to the caller, and ends the request with the last one.
    fn pass(&mut self, step: Step) -> Vec<ControlMessage> {
        let last = match step {
            // The piece is in the log of the merge.
            Step::Piece(_) | Step::Tell { .. } => return Vec::new(),
            Step::Restarted { kept } => {
                self.inbox.restart(kept);
                return Vec::new();
            }
            Step::Done(summary) => ReplyEvent::Done(summary),
            Step::Failed(failure) => ReplyEvent::Failed(failure),
        };
        if self.over {
            return Vec::new();
        }
        self.inbox.end(last);
        // The worker that ended the request knows of the end. Competing workers must be canceled.
        let messages = self.cancels();
        self.end();
        messages
    }

    /// Ends a request that its caller no longer needs, and returns the cancels for its workers.
    pub(crate) fn cancel(&mut self) -> Vec<ControlMessage> {
        if self.is_over() {
            return Vec::new();
        }
        let messages = self.cancels();
        self.end();
        messages
    }

    /// Drops what the caller of a request that is over does not read any more.
    pub(crate) fn discard(&mut self) {
        self.merge.discard();
        self.inbox = Inbox::default();
    }

    fn end(&mut self) {
        self.over = true;
        self.inbox.wake();
        self.merge.end();
        // Input and key are needed only to enqueue again. The roots stay, to cancel late workers.
        self.original = None;
        self.workers = VecDeque::new();
    }

    /// Returns a cancel for each worker whose stream has not ended, and for the future worker of
    /// each unopened copy.
    fn cancels(&self) -> Vec<ControlMessage> {
        let runs = |worker: &&Worker| !self.merge.has_ended(worker.stream);
        let model = || self.model.as_str().to_owned();
        let key = |worker: &Worker| worker.queue.clone().unwrap_or_else(model);
        let running = self.workers.iter().filter(runs).map(|worker| (key(worker), worker.enqueue));
        let waiting = (0..self.merge.enqueues()).filter(|enqueue| !self.merge.is_opened(*enqueue));
        let waiting = waiting.map(|enqueue| (model(), enqueue));
        let mut told = Vec::new();
        for whom in running.chain(waiting) {
            if !told.contains(&whom) {
                told.push(whom);
            }
        }
        let cancel = |(key, enqueue): &(String, usize)| {
            self.message(key, *enqueue, ControlKind::Cancel, b"")
        };
        told.iter().filter_map(cancel).collect()
    }

    fn message(
        &self,
        key: &str,
        enqueue: usize,
        kind: ControlKind,
        body: &[u8],
    ) -> Option<ControlMessage> {
        let root = self.merge.root(enqueue)?;
        seal_control(root, self.id, kind, body)
            .inspect_err(|error| tracing::warn!(%error, "a control frame could not be sealed"))
            .ok()
            .map(|frame| ControlMessage {
                request: self.id,
                key: key.to_owned(),
                frame,
                before: self.attempt,
            })
    }

    /// Records that the reply queue was lost with its content, which may have included the end of
    /// the reply.
    pub(crate) fn disturb(&mut self) {
        self.disturbed = Some(Instant::now());
    }

    /// Seals the request again if replies were lost and no worker is heard (rule C6). Returns the
    /// copy and its number. `listening` is the time from which replies could be received.
    pub(crate) fn enqueue_again(
        &mut self,
        timing: &Timing,
        listening: Instant,
    ) -> Option<(Vec<u8>, u16)> {
        let lost = self.merge.has_broken_end() || self.disturbed.is_some();
        let patience = match lost {
            true => timing.silent_after_loss,
            false if self.merge.is_held() && self.asked.is_none() => timing.silent_after_open,
            // The copy may be waiting in the queue.
            false => return None,
        };
        let moments = [self.disturbed, self.asked].into_iter().flatten();
        let since = moments.fold(self.heard.max(listening), Instant::max);
        let again = u16::try_from(self.merge.enqueues()).ok()?;
        let original = self.original.as_deref()?;
        let number = original.epoch.saturating_add(again);
        if usize::from(again) >= MAX_ENQUEUES
            || since.elapsed() < patience * (1 << (again - 1))
            || Instant::now() >= self.deadline
        {
            return None;
        }
        let sealed = original.seal();
        let sealed = sealed
            .inspect_err(|error| tracing::warn!(%error, "a request could not be sealed again"))
            .ok()?;
        self.merge.enqueued(sealed.reply_root);
        self.sealed += sealed.frame.len() as u64;
        // After a loss, enqueue again if this copy brings no sign of life either.
        if lost {
            self.disturb();
        }
        self.asked = Some(Instant::now());
        Some((sealed.frame, number))
    }

    /// Returns the properties of the request, without its content; `None` once it is over.
    pub(crate) fn envelope(&self) -> Option<Envelope> {
        self.original.as_ref().map(|original| original.envelope(self.attempt))
    }
}

#[cfg(test)]
mod tests;
