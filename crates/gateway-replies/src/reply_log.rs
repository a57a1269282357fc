//! Reply in progress: a log of its pieces that any number of connections read.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use nsbridge_client::{Event, ReplayKey, Reply, Summary, TextPiece};
use nsbridge_gateway_access::Priority;
use nsbridge_protocol::{AttemptNo, Fingerprint, RequestId, Revision};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::failure::{Failure, Result};
use crate::record::Record;
use crate::reply_end::ReplyEnd;

/// Maximum number of pieces of a part. A connection makes events of a whole part at once, so one that
/// reads slowly would have the events of most of its reply in memory.
const MAX_PIECES_PER_PART: usize = 256;

/// Piece of a reply, with the bytes that the worker sent.
///
/// The bytes are needed to continue the reply elsewhere: a worker compares the pieces that it
/// receives with its own.
pub struct RawPiece {
    /// Parsed piece.
    pub piece: TextPiece,
    pub(crate) json: Box<RawValue>,
}

impl RawPiece {
    /// Returns the size of the piece in memory, in bytes.
    fn bytes(&self) -> usize {
        /// Parsed piece and its allocations.
        const PIECE: usize = 256;
        PIECE + 2 * self.json.get().len()
    }
}

impl<'de> Deserialize<'de> for RawPiece {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        let piece = serde_json::from_str(json.get()).map_err(serde::de::Error::custom)?;
        Ok(Self { piece, json })
    }
}

impl ReplayKey for RawPiece {
    fn replay_key(piece: &[u8]) -> std::borrow::Cow<'_, [u8]> {
        TextPiece::replay_key(piece)
    }
}

impl fmt::Debug for RawPiece {
    /// Omits the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawPiece").finish_non_exhaustive()
    }
}

/// Reply in progress, or one that ended recently.
#[derive(Debug)]
pub struct ReplyLog {
    /// Id of the request.
    pub id: RequestId,
    /// Time at which the request arrived.
    pub created_at: SystemTime,
    /// Seed of the sampling.
    pub seed: u64,
    /// Number of times that a gateway continued the reply.
    pub continued: u16,
    state: Mutex<LogState>,
    /// Number of changes of the log.
    changes: watch::Sender<u64>,
    /// Number of connections that read the reply.
    readers: AtomicUsize,
    /// True if the reply goes on without readers.
    background: bool,
    /// Class of the request in its queue.
    pub class: Priority,
    cancel: CancellationToken,
    /// True if the gateway ends before the reply.
    released: AtomicBool,
    /// Canceled when the model of the request is found without a worker.
    starting: CancellationToken,
    /// Time from which the reply fails while its model has no worker.
    waits_until: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct LogState {
    pieces: Vec<Arc<RawPiece>>,
    /// Number of the pieces that an earlier computation had.
    restored: usize,
    /// Size of the pieces in memory, in bytes.
    bytes: usize,
    /// Number of times at which pieces were withdrawn.
    restarts: u32,
    /// True if the worker differs from the one whose pieces clients of another replica have.
    foreign: bool,
    fingerprint: Option<Fingerprint>,
    revision: Option<Revision>,
    /// Attempt that produced the last piece.
    attempt: Option<AttemptNo>,
    /// Number of attempts that produced the pieces.
    attempts: u32,
    end: Option<ReplyEnd>,
}

impl LogState {
    /// Withdraws the pieces from this number on.
    fn truncate(&mut self, kept: usize) {
        let withdrawn = self.pieces.drain(kept.min(self.pieces.len())..);
        self.bytes -= withdrawn.map(|piece| piece.bytes()).sum::<usize>();
        self.restored = self.restored.min(kept);
    }
}

impl fmt::Debug for LogState {
    /// Omits the text of the reply.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogState").field("pieces", &self.pieces.len()).finish_non_exhaustive()
    }
}

impl ReplyLog {
    /// Creates the empty log of the reply to a request.
    pub(crate) fn new(record: &Record) -> Self {
        Self {
            id: record.id,
            created_at: record.created_at,
            seed: record.seed,
            continued: record.clients,
            class: record.class,
            state: Mutex::default(),
            changes: watch::Sender::new(0),
            readers: AtomicUsize::new(0),
            background: record.background,
            cancel: CancellationToken::new(),
            released: AtomicBool::new(false),
            starting: CancellationToken::new(),
            waits_until: Mutex::default(),
        }
    }

    /// Fills the log with pieces and an end that were stored.
    pub(crate) fn restore(
        &self,
        pieces: Vec<Arc<RawPiece>>,
        fingerprint: Option<Fingerprint>,
        end: Option<ReplyEnd>,
    ) {
        let mut state = self.state.lock();
        (state.restored, state.bytes) =
            (pieces.len(), pieces.iter().map(|piece| piece.bytes()).sum());
        state.attempts = u32::from(!pieces.is_empty());
        (state.pieces, state.fingerprint, state.end) = (pieces, fingerprint, end);
    }

    /// Waits for the next change of a reply that a worker sends. The log has the change from then on,
    /// and readers wait for it until [`ReplyLog::publish`].
    pub(crate) async fn receive(&self, reply: &mut Reply<RawPiece>) -> Change {
        loop {
            let event = tokio::select! {
                event = reply.next() => event,
                () = self.cancel.cancelled() => {
                    reply.cancel();
                    let failure =
                        if self.is_released() { Failure::draining() } else { Failure::cancelled() };
                    return self.end_with(ReplyEnd::Failed(failure));
                }
            };
            return match event {
                Some(Ok(Event::Piece(piece))) => self.push(piece, reply),
                Some(Ok(Event::Restarted { kept })) => {
                    let mut state = self.state.lock();
                    state.truncate(kept);
                    state.restarts += 1;
                    Change::Restarted { kept }
                }
                Some(Ok(Event::Done(summary))) => self.end_with(ReplyEnd::Done(summary)),
                // The client passes on a bounded number of them.
                Some(Ok(Event::Hint(code))) => {
                    tracing::warn!(request = %self.id, %code, "a worker reports that it cannot open a request");
                    continue;
                }
                Some(Ok(_)) => continue,
                Some(Err(error)) => self.end_with(ReplyEnd::Failed(error.into())),
                None => self.end_with(ReplyEnd::Failed(nsbridge_client::Error::Closed.into())),
            };
        }
    }

    /// Appends the piece that a reply has just got.
    fn push(&self, piece: RawPiece, reply: &Reply<RawPiece>) -> Change {
        let piece = Arc::new(piece);
        let (fingerprint, attempt) = (reply.fingerprint(), reply.attempt());
        let mut state = self.state.lock();
        let new_worker = state.fingerprint != fingerprint;
        // Pieces that are not there cannot be compared, but their worker can.
        state.foreign |= new_worker && state.fingerprint.is_some() && state.pieces.is_empty();
        state.fingerprint = fingerprint;
        if state.attempt != attempt {
            state.attempt = attempt;
            state.attempts += 1;
        }
        if state.revision.is_none() {
            state.revision = reply.revision();
        }
        state.bytes += piece.bytes();
        state.pieces.push(piece.clone());
        Change::Piece { index: state.pieces.len() - 1, piece, fingerprint, new_worker }
    }

    /// Ends the reply, unless it has an end, which is then told again. A reply that only its
    /// connections or this process gave up is interrupted: another process, or a client that comes
    /// back, continues it.
    pub(crate) fn end_with(&self, end: ReplyEnd) -> Change {
        let end = self.state.lock().end.get_or_insert(end).clone();
        let given_up = self.is_released() || self.is_cancelled() && !self.background;
        match end {
            ReplyEnd::Failed(_) if given_up => Change::Interrupted,
            end => Change::Ended(end),
        }
    }

    /// Wakes the readers after a change.
    pub(crate) fn publish(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Stops the reply.
    pub(crate) fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits until the reply is stopped.
    pub(crate) async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Stops the reply because the gateway ends; another one continues it.
    pub(crate) fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
        self.cancel();
    }

    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::SeqCst)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Limits the time that the reply waits for the first worker of its model. The earliest limit holds.
    pub(crate) fn limit_wait(&self, patience: Option<Duration>) {
        let Some(patience) = patience else { return };
        let until = Instant::now() + patience;
        let mut known = self.waits_until.lock();
        *known = Some(known.map_or(until, |known| known.min(until)));
    }

    /// Returns the time from which the reply fails while its model has no worker.
    pub(crate) fn waits_until(&self) -> Option<Instant> {
        *self.waits_until.lock()
    }

    /// Tells the readers that the reply waits for the first worker of its model.
    pub(crate) fn tell_starting(&self) {
        self.starting.cancel();
    }

    /// Returns the end; `None` in progress.
    pub fn end(&self) -> Option<ReplyEnd> {
        self.state.lock().end.clone()
    }

    /// Returns true if the reply has failed, false if it is done, and `None` in progress.
    pub(crate) fn has_failed(&self) -> Option<bool> {
        self.state.lock().end.as_ref().map(|end| matches!(end, ReplyEnd::Failed(_)))
    }

    /// Returns the revision of the model that produced the pieces.
    pub fn revision(&self) -> Option<Revision> {
        self.state.lock().revision.clone()
    }

    /// Returns the number of attempts that produced the pieces.
    pub fn attempts(&self) -> u32 {
        self.state.lock().attempts
    }

    /// Returns the pieces so far, and the fingerprint of the last one's worker.
    pub fn pieces(&self) -> (Vec<Arc<RawPiece>>, Option<Fingerprint>) {
        let state = self.state.lock();
        (state.pieces.clone(), state.fingerprint)
    }

    /// Returns the number of tokens that this process has received. Those of an echoed prompt do not
    /// count.
    pub(crate) fn received(&self) -> u64 {
        let state = self.state.lock();
        let new = state.pieces.get(state.restored..).unwrap_or_default();
        new.iter().filter(|piece| !piece.piece.prompt).count() as u64
    }

    /// Returns the size of the pieces in memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Returns a reader of the whole reply. A reply that is not in the background is canceled when its
    /// last reader is dropped.
    pub fn reader(self: &Arc<Self>) -> Reader {
        self.readers.fetch_add(1, Ordering::SeqCst);
        let restarts = self.state.lock().restarts;
        Reader { changes: self.changes.subscribe(), log: self.clone(), at: 0, restarts }
    }
}

/// Change of a reply.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Next piece.
    Piece {
        index: usize,
        piece: Arc<RawPiece>,
        /// Fingerprint of its worker.
        fingerprint: Option<Fingerprint>,
        /// True if another worker, or none, produced the piece before.
        new_worker: bool,
    },
    /// Withdrawal of the pieces from this number on.
    Restarted { kept: usize },
    /// End in this process alone: the reply may be continued.
    Interrupted,
    /// End of the reply.
    Ended(ReplyEnd),
}

impl Change {
    /// Returns true if this process computes the reply no further.
    pub(crate) fn is_last(&self) -> bool {
        matches!(self, Self::Interrupted | Self::Ended(_))
    }
}

/// Position of a connection in a reply.
#[derive(Debug)]
pub struct Reader {
    log: Arc<ReplyLog>,
    changes: watch::Receiver<u64>,
    at: usize,
    restarts: u32,
}

/// Next part of a reply: pieces that are there at once, up to 256, and the end if it follows
/// them.
#[derive(Debug, Default)]
pub struct Part {
    /// Next pieces.
    pub pieces: Vec<Arc<RawPiece>>,
    /// True if pieces that this reader has read were withdrawn.
    pub restarted: bool,
    /// True if the worker differs from the one of the pieces that another replica sent.
    pub foreign: bool,
    /// End, if it follows the pieces.
    pub end: Option<ReplyEnd>,
}

impl Reader {
    /// Waits for the next part. Cancel safe.
    pub async fn next(&mut self) -> Part {
        loop {
            // Marked as seen before the log is read, so that no later change is missed.
            self.changes.borrow_and_update();
            if let Some(part) = self.take() {
                return part;
            }
            if self.changes.changed().await.is_err() {
                let end = ReplyEnd::Failed(nsbridge_client::Error::Closed.into());
                return Part { end: Some(end), ..Part::default() };
            }
        }
    }

    fn take(&mut self) -> Option<Part> {
        let state = self.log.state.lock();
        let restarted = state.restarts != self.restarts && self.at > 0;
        self.restarts = state.restarts;
        let unread = state.pieces.get(self.at..).unwrap_or_default();
        let pieces = unread[..unread.len().min(MAX_PIECES_PER_PART)].to_vec();
        self.at += pieces.len();
        let end = state.end.clone().filter(|_| pieces.len() == unread.len());
        let foreign = state.foreign;
        let part = Part { pieces, restarted, foreign, end };
        (part.restarted || !part.pieces.is_empty() || part.end.is_some()).then_some(part)
    }

    /// Waits until the reply is found to wait for a model that has no worker.
    pub fn starting(&self) -> impl Future<Output = ()> + Send + use<> {
        self.log.starting.clone().cancelled_owned()
    }

    /// Waits for the end, and returns all pieces.
    ///
    /// # Errors
    ///
    /// Returns the error of the reply.
    pub async fn whole(mut self) -> Result<(Vec<Arc<RawPiece>>, Summary)> {
        loop {
            match self.next().await.end {
                None => {}
                Some(ReplyEnd::Done(summary)) => return Ok((self.log.pieces().0, summary)),
                Some(ReplyEnd::Failed(error)) => return Err(error),
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let last = self.log.readers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && !self.log.background && self.log.end().is_none() {
            self.log.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::{Failure, RawPiece, ReplyEnd, ReplyLog};
    use crate::store::testing::record;

    #[tokio::test]
    async fn a_reader_that_comes_late_gets_the_pieces_in_parts_and_the_end_with_the_last() {
        let log = Arc::new(ReplyLog::new(&record(1, SystemTime::now())));
        let piece = |token| serde_json::from_str(&format!(r#"{{"token":{token},"text":""}}"#));
        let pieces: Vec<Arc<RawPiece>> = (0..1000).map(|n| Arc::new(piece(n).unwrap())).collect();
        log.restore(pieces, None, Some(ReplyEnd::Failed(Failure::draining())));
        let (mut reader, mut tokens) = (log.reader(), Vec::new());
        loop {
            let part = reader.next().await;
            // A number of its own: a larger maximum is a decision about memory.
            assert!(part.pieces.len() <= 256, "{}", part.pieces.len());
            tokens.extend(part.pieces.iter().map(|piece| piece.piece.token));
            if part.end.is_some() {
                break;
            }
        }
        assert_eq!(tokens, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn what_a_worker_withdraws_neither_takes_memory_nor_counts_as_restored() {
        let log = ReplyLog::new(&record(1, SystemTime::now()));
        let piece = || -> Arc<RawPiece> {
            Arc::new(serde_json::from_str(r#"{"token": 1, "text": "a"}"#).unwrap())
        };
        log.restore(vec![piece(), piece(), piece()], None, None);
        let three = log.bytes();
        assert_eq!(log.received(), 0);
        log.state.lock().truncate(1);
        assert_eq!((log.received(), log.bytes() * 3), (0, three));
        // The next worker computes the second piece again.
        log.state.lock().pieces.push(piece());
        assert_eq!(log.received(), 1);
        log.state.lock().truncate(9);
        assert_eq!(log.received(), 1);
    }
}
