//! Reply in progress: a log of its pieces that any number of connections read.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use nsbridge_client::{Event, ReplayKey, Reply, Summary, TextPiece};
use nsbridge_protocol::{AttemptNo, Fingerprint, RequestId, Revision};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::callers::class::Class;
use crate::text::error::ApiError;

/// Maximum number of pieces of a part. A connection makes events of a whole part at once, so one that
/// reads slowly would have the events of most of its reply in memory.
const MOST_PIECES: usize = 256;

/// Piece of a reply, with the bytes that the worker sent.
///
/// The bytes are needed to continue the reply elsewhere: a worker compares the pieces that it
/// receives with its own.
pub(crate) struct RawPiece {
    pub(crate) piece: TextPiece,
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

/// End of a reply.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    Done(Summary),
    Failed(ApiError),
}

/// Reply in progress, or one that ended recently.
#[derive(Debug)]
pub(crate) struct ReplyLog {
    pub(crate) id: RequestId,
    pub(crate) created_at: SystemTime,
    pub(crate) seed: u64,
    /// Number of times that a gateway continued the reply.
    pub(crate) continued: u16,
    state: Mutex<LogState>,
    /// Number of changes of the log.
    changes: watch::Sender<u64>,
    /// Number of connections that read the reply.
    readers: AtomicUsize,
    /// True if the reply goes on without readers.
    background: bool,
    /// Class of the request in its queue.
    pub(crate) class: Class,
    cancel: CancellationToken,
    /// True if the gateway ends before the reply.
    released: AtomicBool,
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
    ending: Option<Ending>,
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
    pub(crate) fn new(
        id: RequestId,
        created_at: SystemTime,
        background: bool,
        class: Class,
    ) -> Self {
        Self {
            id,
            created_at,
            class,
            seed: 0,
            continued: 0,
            state: Mutex::default(),
            changes: watch::Sender::new(0),
            readers: AtomicUsize::new(0),
            background,
            cancel: CancellationToken::new(),
            released: AtomicBool::new(false),
        }
    }

    /// Sets the seed, and the number of times that a gateway continued the reply.
    #[must_use]
    pub(crate) fn seeded(self, seed: u64, continued: u16) -> Self {
        Self { seed, continued, ..self }
    }

    /// Fills the log with pieces and an end that were stored.
    pub(crate) fn restore(
        &self,
        pieces: Vec<Arc<RawPiece>>,
        fingerprint: Option<Fingerprint>,
        ending: Option<Ending>,
    ) {
        let mut state = self.state.lock();
        (state.restored, state.bytes) =
            (pieces.len(), pieces.iter().map(|piece| piece.bytes()).sum());
        state.attempts = u32::from(!pieces.is_empty());
        (state.pieces, state.fingerprint, state.ending) = (pieces, fingerprint, ending);
    }

    /// Reads a reply to its end. `told` is called after each change, with the new pieces.
    pub(crate) async fn drive(&self, mut reply: Reply<RawPiece>, told: impl Fn(Change<'_>)) {
        let ending = loop {
            let event = tokio::select! {
                event = reply.next() => event,
                () = self.cancel.cancelled() => {
                    reply.cancel();
                    let error =
                        if self.is_released() { draining() } else { ApiError::cancelled() };
                    break Ending::Failed(error);
                }
            };
            match event {
                Some(Ok(Event::Piece(piece))) => {
                    let piece = Arc::new(piece);
                    let (fingerprint, attempt) = (reply.fingerprint(), reply.attempt());
                    let at = {
                        let mut state = self.state.lock();
                        // Pieces that are not there cannot be compared, but their worker can.
                        let known = state.fingerprint.filter(|_| state.pieces.is_empty());
                        state.foreign |= known.is_some_and(|known| Some(known) != fingerprint);
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
                        state.pieces.len() - 1
                    };
                    told(Change::Piece { at, piece: &piece, fingerprint });
                }
                Some(Ok(Event::Restarted { kept })) => {
                    let mut state = self.state.lock();
                    state.truncate(kept);
                    state.restarts += 1;
                    drop(state);
                    told(Change::Restarted { kept });
                }
                Some(Ok(Event::Done(summary))) => break Ending::Done(summary),
                // The client passes on a bounded number of them.
                Some(Ok(Event::Hint(code))) => {
                    tracing::warn!(request = %self.id, %code, "a worker reports that it cannot open a request");
                    continue;
                }
                Some(Ok(_)) => continue,
                Some(Err(error)) => break Ending::Failed(error.into()),
                None => break Ending::Failed(ApiError::from(nsbridge_client::Error::Closed)),
            }
            self.notify();
        };
        self.end(&ending, told);
    }

    /// Ends a reply that could not be submitted, or that has ended.
    pub(crate) fn end(&self, ending: &Ending, told: impl Fn(Change<'_>)) {
        self.state.lock().ending.get_or_insert(ending.clone());
        told(Change::Ended(ending));
        self.notify();
    }

    fn notify(&self) {
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

    pub(crate) fn ending(&self) -> Option<Ending> {
        self.state.lock().ending.clone()
    }

    /// Returns true if the reply has failed, false if it is done, and `None` in progress.
    pub(crate) fn has_failed(&self) -> Option<bool> {
        self.state.lock().ending.as_ref().map(|ending| matches!(ending, Ending::Failed(_)))
    }

    pub(crate) fn revision(&self) -> Option<Revision> {
        self.state.lock().revision.clone()
    }

    /// Returns the number of attempts that produced the pieces.
    pub(crate) fn attempts(&self) -> u32 {
        self.state.lock().attempts
    }

    /// Returns the pieces so far, and the fingerprint of the last one's worker.
    pub(crate) fn pieces(&self) -> (Vec<Arc<RawPiece>>, Option<Fingerprint>) {
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
    pub(crate) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Returns a reader of the whole reply. A run that is not in the background is canceled when its
    /// last reader is dropped.
    pub(crate) fn reader(self: &Arc<Self>) -> Reader {
        self.readers.fetch_add(1, Ordering::SeqCst);
        let restarts = self.state.lock().restarts;
        Reader { changes: self.changes.subscribe(), log: self.clone(), at: 0, restarts }
    }
}

/// Change of a reply, for the store.
pub(crate) enum Change<'a> {
    Piece { at: usize, piece: &'a RawPiece, fingerprint: Option<Fingerprint> },
    Restarted { kept: usize },
    Ended(&'a Ending),
}

/// Position of a connection in a reply.
#[derive(Debug)]
pub(crate) struct Reader {
    log: Arc<ReplyLog>,
    changes: watch::Receiver<u64>,
    at: usize,
    restarts: u32,
}

/// Next part of a reply: pieces that are there at once, up to [`MOST_PIECES`], and the end if it follows
/// them.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) pieces: Vec<Arc<RawPiece>>,
    /// True if pieces that this reader has read were withdrawn.
    pub(crate) restarted: bool,
    /// True if the worker differs from the one of the pieces that another replica sent.
    pub(crate) foreign: bool,
    pub(crate) ending: Option<Ending>,
}

impl Reader {
    /// Waits for the next part. Cancel safe.
    pub(crate) async fn next(&mut self) -> Part {
        loop {
            // Marked as seen before the log is read, so that no later change is missed.
            self.changes.borrow_and_update();
            if let Some(part) = self.take() {
                return part;
            }
            if self.changes.changed().await.is_err() {
                let ending = Ending::Failed(nsbridge_client::Error::Closed.into());
                return Part { ending: Some(ending), ..Part::default() };
            }
        }
    }

    fn take(&mut self) -> Option<Part> {
        let state = self.log.state.lock();
        let restarted = state.restarts != self.restarts && self.at > 0;
        self.restarts = state.restarts;
        let unread = state.pieces.get(self.at..).unwrap_or_default();
        let pieces = unread[..unread.len().min(MOST_PIECES)].to_vec();
        self.at += pieces.len();
        let ending = state.ending.clone().filter(|_| pieces.len() == unread.len());
        let foreign = state.foreign;
        let part = Part { pieces, restarted, foreign, ending };
        (part.restarted || !part.pieces.is_empty() || part.ending.is_some()).then_some(part)
    }

    /// Waits for the end, and returns all pieces.
    ///
    /// # Errors
    ///
    /// Returns the error of the reply.
    pub(crate) async fn whole(
        mut self,
    ) -> crate::text::error::Result<(Vec<Arc<RawPiece>>, Summary)> {
        loop {
            match self.next().await.ending {
                None => {}
                Some(Ending::Done(summary)) => return Ok((self.log.pieces().0, summary)),
                Some(Ending::Failed(error)) => return Err(error),
            }
        }
    }
}

fn draining() -> ApiError {
    let message = "the gateway shuts down: read the reply again";
    ApiError::unavailable(message, Duration::from_secs(1)).coded("draining")
}

impl Drop for Reader {
    fn drop(&mut self) {
        let last = self.log.readers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && !self.log.background && self.log.ending().is_none() {
            self.log.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use nsbridge_protocol::{RequestId, Uuid};

    use super::{Class, Ending, MOST_PIECES, RawPiece, ReplyLog, draining};

    #[tokio::test]
    async fn a_reader_that_comes_late_gets_the_pieces_in_parts_and_the_end_with_the_last() {
        let id = RequestId(Uuid::from_u128(1));
        let log = Arc::new(ReplyLog::new(id, SystemTime::now(), true, Class::default()));
        let piece = |token| serde_json::from_str(&format!(r#"{{"token":{token},"text":""}}"#));
        let pieces: Vec<Arc<RawPiece>> = (0..1000).map(|n| Arc::new(piece(n).unwrap())).collect();
        log.restore(pieces, None, Some(Ending::Failed(draining())));
        let (mut reader, mut tokens) = (log.reader(), Vec::new());
        loop {
            let part = reader.next().await;
            assert!(part.pieces.len() <= MOST_PIECES, "{}", part.pieces.len());
            tokens.extend(part.pieces.iter().map(|piece| piece.piece.token));
            if part.ending.is_some() {
                break;
            }
        }
        assert_eq!(tokens, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn what_a_worker_withdraws_neither_takes_memory_nor_counts_as_restored() {
        let id = RequestId(Uuid::from_u128(1));
        let log = ReplyLog::new(id, SystemTime::now(), false, Class::default());
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
