//! One request at its client: what its frames lead to, whom to tell, and when to ask again.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use nsbridge_crypto::{DataKey, RequestHead, Sealed, seal_control};
use nsbridge_protocol::{
    ControlKind, ErrorCode, Failure, RequestId, Revision, StreamId, Summary, TraceParent,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::merge::{Merge, Step};
use crate::request::Envelope;

/// Pieces that may wait for a caller before its request is given up.
pub(crate) const INBOX: usize = 16 << 10;

/// Workers of one request that are told of its end.
const MAX_WORKERS: usize = 8;

/// How often a request is enqueued again after a loss (rule C6).
const MAX_ENQUEUES: usize = 1 + 3;

/// How long nothing must have been heard for that: a worker that lives is heard every 5 s. Twice as
/// long before each further time, since a copy may just wait for its turn.
const QUIET: Duration = Duration::from_secs(6);

/// The same of a request that was opened, where nothing tells of a loss. Its worker is gone by then,
/// even by the broker's heartbeats, and whoever took its copy over would be heard. It may wait, where
/// nobody is left or all are busy, and so this is done once; but a broker may keep what a lost
/// consumer held to itself (rabbitmq-server issues 11228 and 15473).
const SILENT: Duration = Duration::from_secs(90);

/// A worker has no more to hint at than that a request waits, each time that it is tried.
const MOST_HINTS: usize = 16;

/// What a caller gets.
pub(crate) enum Note {
    Piece(Vec<u8>),
    Restarted {
        kept: usize,
    },
    Done(Summary),
    Failed(Failure),
    /// An unsealed word: never acted upon.
    Hint(ErrorCode),
}

impl fmt::Debug for Note {
    /// Leaves out what the reply says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Piece(_) => "Piece",
            Self::Restarted { .. } => "Restarted",
            Self::Done(_) => "Done",
            Self::Failed(_) => "Failed",
            Self::Hint(_) => "Hint",
        })
    }
}

/// A control frame on its way.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) request: RequestId,
    /// The routing key.
    pub(crate) key: String,
    pub(crate) frame: Vec<u8>,
    /// The span of the attempt before.
    pub(crate) before: Option<TraceParent>,
}

/// The worker that opened a stream.
#[derive(Debug)]
struct Worker {
    stream: StreamId,
    enqueue: usize,
    /// Its control queue, if its open named one.
    queue: Option<String>,
}

/// What a request is sealed from, each time that it is enqueued.
pub(crate) struct Original {
    pub(crate) head: RequestHead,
    pub(crate) key: DataKey,
    /// Seed and input as JSON.
    pub(crate) content: Vec<u8>,
    /// The caller's span.
    pub(crate) trace: TraceParent,
}

impl fmt::Debug for Original {
    /// Leaves out what the user wrote.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Original").field("head", &self.head).finish_non_exhaustive()
    }
}

impl Original {
    /// Seals it under a fresh salt: a copy that no worker takes for an earlier one.
    pub(crate) fn seal(&self) -> nsbridge_crypto::Result<Sealed> {
        self.key.seal(&self.head, &self.content)
    }
}

/// How far a request has come.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    pub(crate) pieces: usize,
    pub(crate) gap: bool,
    /// The last sign of life.
    pub(crate) heard: Instant,
    /// Sealed bytes, both ways.
    pub(crate) sealed: u64,
    /// Of the model, as the worker of the pieces so far says.
    pub(crate) revision: Option<Revision>,
}

/// A request that waits for its reply, or ended lately.
#[derive(Debug)]
pub(crate) struct Entry {
    original: Original,
    merge: Merge,
    /// `None` once the request is over.
    inbox: Option<mpsc::Sender<Note>>,
    /// Those that opened a stream last, and have not ended it.
    workers: VecDeque<Worker>,
    pub(crate) deadline: Instant,
    heard: Instant,
    /// When replies may have been lost with the reply queue, if nothing was heard since.
    disturbed: Option<Instant>,
    /// When it was enqueued again.
    asked: Option<Instant>,
    /// The span of the attempt that opened last.
    attempt: Option<TraceParent>,
    sealed: u64,
    /// How many its caller has got.
    hints: usize,
}

impl Entry {
    pub(crate) fn new(
        original: Original,
        merge: Merge,
        deadline: Instant,
        sealed: u64,
    ) -> (Self, mpsc::Receiver<Note>) {
        let (sender, notes) = mpsc::channel(INBOX);
        let entry = Self {
            original,
            merge,
            inbox: Some(sender),
            workers: VecDeque::new(),
            deadline,
            heard: Instant::now(),
            disturbed: None,
            asked: None,
            attempt: None,
            sealed,
            hints: 0,
        };
        (entry, notes)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.inbox.is_none()
    }

    pub(crate) fn progress(&self) -> Progress {
        let (pieces, gap) = (self.merge.len(), self.merge.has_gap());
        let revision = self.merge.revision().cloned();
        Progress { pieces, gap, heard: self.heard, sealed: self.sealed, revision }
    }

    /// Passes an unsealed word on, of which anybody can send any number: they must not take the
    /// place of pieces.
    pub(crate) fn hint(&mut self, code: ErrorCode) {
        if let Some(inbox) = self.inbox.as_ref().filter(|_| self.hints < MOST_HINTS) {
            self.hints += 1;
            let _ = inbox.try_send(Note::Hint(code));
        }
    }

    /// Takes one frame; gives the control frames that answer it. Only if this is the open of a stream
    /// that was not here before, its worker can be reached under `reply_to` and goes by `span`: neither
    /// is sealed, and the frame may have been repeated by anybody.
    pub(crate) fn accept(
        &mut self,
        frame: &[u8],
        reply_to: Option<&str>,
        span: Option<TraceParent>,
    ) -> Vec<Letter> {
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
        let mut letters = Vec::new();
        for step in steps {
            match step {
                Step::Tell { enqueue, kind, body } => {
                    let key = reply_to.unwrap_or(self.model());
                    letters.extend(self.letter(key, enqueue, kind, &body));
                }
                step => letters.extend(self.pass(step)),
            }
        }
        // A later attempt is told of it.
        self.attempt = span.filter(|_| opened.is_some()).or(self.attempt);
        letters
    }

    fn remember(&mut self, worker: Worker) {
        let merge = &self.merge;
        self.workers.retain(|known| !merge.has_ended(known.stream));
        if self.workers.len() == MAX_WORKERS {
            self.workers.pop_front();
        }
        self.workers.push_back(worker);
    }

    /// Hands a step to the caller; ends the request if it was the last, or nobody reads it.
    fn pass(&mut self, step: Step) -> Vec<Letter> {
        let (note, last) = match step {
            Step::Piece(piece) => (Note::Piece(piece), false),
            Step::Restarted { kept } => (Note::Restarted { kept }, false),
            Step::Done(summary) => (Note::Done(summary), true),
            Step::Failed(failure) => (Note::Failed(failure), true),
            Step::Tell { .. } => return Vec::new(),
        };
        let Some(inbox) = &self.inbox else { return Vec::new() };
        let unread = inbox.try_send(note).is_err();
        if !last && !unread {
            return Vec::new();
        }
        // Whoever ended it knows that; rivals must be told.
        let letters = self.cancels();
        self.end();
        letters
    }

    /// Ends a request that nobody wants any more; gives what its workers are told.
    pub(crate) fn cancel(&mut self) -> Vec<Letter> {
        if self.is_over() {
            return Vec::new();
        }
        let letters = self.cancels();
        self.end();
        letters
    }

    fn end(&mut self) {
        self.inbox = None;
        self.merge.end();
        // What could still ask for it is not needed any more; only the roots are.
        self.original.content = Vec::new();
    }

    /// A cancel for each worker whose stream has not ended, and for whoever opens a copy that nobody
    /// has opened.
    fn cancels(&self) -> Vec<Letter> {
        let runs = |worker: &&Worker| !self.merge.has_ended(worker.stream);
        let key = |worker: &Worker| worker.queue.clone().unwrap_or_else(|| self.model().to_owned());
        let running = self.workers.iter().filter(runs).map(|worker| (key(worker), worker.enqueue));
        let waiting = (0..self.merge.enqueues()).filter(|enqueue| !self.merge.is_opened(*enqueue));
        let waiting = waiting.map(|enqueue| (self.model().to_owned(), enqueue));
        let mut told = Vec::new();
        for whom in running.chain(waiting) {
            if !told.contains(&whom) {
                told.push(whom);
            }
        }
        let cancel =
            |(key, enqueue): &(String, usize)| self.letter(key, *enqueue, ControlKind::Cancel, b"");
        told.iter().filter_map(cancel).collect()
    }

    fn letter(&self, key: &str, enqueue: usize, kind: ControlKind, body: &[u8]) -> Option<Letter> {
        let root = self.merge.root(enqueue)?;
        seal_control(root, self.id(), kind, body)
            .inspect_err(|error| tracing::warn!(%error, "a control frame could not be sealed"))
            .ok()
            .map(|frame| Letter {
                request: self.id(),
                key: key.to_owned(),
                frame,
                before: self.attempt,
            })
    }

    /// Where a worker hears that has not opened the request yet.
    fn model(&self) -> &str {
        self.original.head.model.as_str()
    }

    fn id(&self) -> RequestId {
        self.original.head.id
    }

    /// The reply queue was lost, and what was in it: an end may have been among that.
    pub(crate) fn disturb(&mut self) {
        self.disturbed = Some(Instant::now());
    }

    /// Rule C6: seals the request again if replies to it were lost and nobody is heard of; gives
    /// the copy and its number. `listening` is since when replies can be heard.
    pub(crate) fn ask_again(&mut self, listening: Instant) -> Option<(Vec<u8>, u16)> {
        let lost = self.merge.has_broken_end() || self.disturbed.is_some();
        let patience = match lost {
            true => QUIET,
            false if self.merge.is_held() && self.asked.is_none() => SILENT,
            // It may wait for its turn.
            false => return None,
        };
        let moments = [self.disturbed, self.asked].into_iter().flatten();
        let since = moments.fold(self.heard.max(listening), Instant::max);
        let again = u16::try_from(self.merge.enqueues()).ok()?;
        let may = !self.is_over() && usize::from(again) < MAX_ENQUEUES;
        if !may
            || since.elapsed() < patience * (1 << (again - 1))
            || Instant::now() >= self.deadline
        {
            return None;
        }
        let sealed = self.original.seal();
        let sealed = sealed
            .inspect_err(|error| tracing::warn!(%error, "a request could not be sealed again"))
            .ok()?;
        self.merge.enqueued(sealed.reply_root);
        self.sealed += sealed.frame.len() as u64;
        // The next time only if this copy brings no sign of life either.
        if lost {
            self.disturb();
        }
        self.asked = Some(Instant::now());
        Some((sealed.frame, again))
    }

    /// What it was sealed from, without its content.
    pub(crate) fn envelope(&self) -> Envelope {
        let Original { head, trace, .. } = &self.original;
        Envelope { head: head.clone(), trace: *trace, before: self.attempt }
    }
}

#[cfg(test)]
mod tests;
