//! Buffer for the pieces of one call, between the handler's thread and the bridge.
//!
//! An [`Emitter`](crate::Emitter) holds the [`Writer`]; the code that runs the call holds the
//! [`Reader`]. A [`Cursor`] hands out the pieces in batches, each piece once. Pieces stay in the
//! buffer until the call ends, because a reply stream that is lost with its connection is sent again
//! from the first piece, with a cursor and a key of its own.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nsbridge_protocol::{MAX_PIECE_BYTES, MAX_TRANSCRIPT_BYTES, Pieces};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

/// Maximum number of unsent bytes before a handler is held back.
pub(crate) const ROOM_BYTES: usize = 32 << 10;

/// Size of the length field before each encoded piece, in bytes.
const LENGTH_BYTES: usize = 4;

/// Reason why a call must end before the model has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// Loss of the client's reply queue.
    ClientGone,
    /// Cancellation by the client.
    Cancelled,
    /// Passed deadline of the request.
    Deadline,
    /// Hand-over to another attempt, here or in another worker: the worker must exit, the run has
    /// lost its delivery, or the request is a bulk request and an interactive one needs its slot.
    HandOff,
    /// Piece or reply that exceeds its maximum size.
    TooLarge,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClientGone => "the client is gone",
            Self::Cancelled => "the client canceled the request",
            Self::Deadline => "the deadline of the request has passed",
            Self::HandOff => "the worker hands the job over",
            Self::TooLarge => "a piece is larger than 64 KiB, or the reply is larger than 8 MiB",
        })
    }
}

/// Creates the two halves of an empty transcript.
pub fn transcript() -> (Writer, Reader) {
    let shared = Arc::new(Shared::default());
    (Writer(shared.clone()), Reader(shared))
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when there are new pieces to read.
    readable: Notify,
    /// Notified when there is space, or the call must stop.
    changed: Notify,
    /// Equivalent of `changed` for a thread that blocks.
    unblocked: Condvar,
}

impl Shared {
    /// Marks the pieces before `index` as sent.
    fn mark_sent(&self, index: usize) {
        let wake = {
            let mut state = self.state.lock();
            let sent = state.start(index.min(state.ends.len()));
            state.sent = state.sent.max(sent);
            state.wake.clone()
        };
        self.tell(wake);
    }

    fn notify_changed(&self) {
        self.changed.notify_waiters();
        self.unblocked.notify_all();
    }

    fn tell(&self, wake: Option<Wake>) {
        self.notify_changed();
        if let Some(wake) = wake {
            wake();
        }
    }
}

#[derive(Default)]
struct State {
    /// Each piece as `u32 length, bytes`, ready to be copied into a frame.
    encoded: Vec<u8>,
    /// End of each piece in `encoded`, as a byte offset.
    ends: Vec<usize>,
    /// Number of bytes of `encoded` that were sent.
    sent: usize,
    /// Index of the first new piece. The pieces before it came from a resume.
    resumed: usize,
    /// Maximum number of pieces, if the handler declared one.
    most: Option<usize>,
    /// Number of tokens of the prompt, if the handler declared it.
    input_tokens: Option<u64>,
    /// Time of the first new piece.
    first_new: Option<Instant>,
    stop: Option<Stop>,
    /// True once the handler has seen the stop. Its return value is then not the whole reply.
    told: bool,
    closed: bool,
    /// True if a piece was emitted after the close.
    late: bool,
    wake: Option<Wake>,
}

type Wake = Arc<dyn Fn() + Send + Sync>;

impl State {
    fn push(&mut self, piece: &[u8]) {
        self.encoded.extend((piece.len() as u32).to_be_bytes());
        self.encoded.extend(piece);
        self.ends.push(self.encoded.len());
    }

    fn start(&self, index: usize) -> usize {
        if index == 0 { 0 } else { self.ends[index - 1] }
    }

    fn admits(&self, piece: &[u8]) -> Admission {
        if let Some(stop) = self.stop {
            Admission::Stopped(stop)
        } else if self.closed {
            Admission::Closed
        } else if piece.len() > MAX_PIECE_BYTES
            || self.encoded.len() + LENGTH_BYTES + piece.len() > MAX_TRANSCRIPT_BYTES
        {
            Admission::Stopped(Stop::TooLarge)
        } else if self.encoded.len() - self.sent > ROOM_BYTES {
            Admission::Full
        } else {
            Admission::Free
        }
    }
}

pub(crate) enum Admission {
    Free,
    Full,
    Closed,
    Stopped(Stop),
}

/// Writing half, held by the handler.
#[derive(Clone)]
pub struct Writer(Arc<Shared>);

impl Writer {
    /// Appends a piece if there is space.
    pub(crate) fn try_push(&self, piece: &[u8]) -> Admission {
        let mut state = self.0.state.lock();
        let admission = state.admits(piece);
        match admission {
            Admission::Free => {
                state.first_new.get_or_insert_with(Instant::now);
                state.push(piece);
                drop(state);
                self.0.readable.notify_one();
            }
            Admission::Stopped(stop) => {
                state.stop.get_or_insert(stop);
                state.told = true;
                drop(state);
                self.0.notify_changed();
            }
            Admission::Closed => state.late = true,
            Admission::Full => {}
        }
        admission
    }

    /// Appends a piece. Blocks the thread until there is space.
    pub(crate) fn push_blocking(&self, piece: &[u8]) -> Result<(), Stop> {
        loop {
            match self.try_push(piece) {
                Admission::Free => return Ok(()),
                Admission::Closed => return Err(Stop::Cancelled),
                Admission::Stopped(stop) => return Err(stop),
                Admission::Full => {
                    let full = |state: &mut State| matches!(state.admits(piece), Admission::Full);
                    self.0.unblocked.wait_while(&mut self.0.state.lock(), full);
                }
            }
        }
    }

    /// Adds the pieces that the client already has. Returns false, and adds nothing, after the first
    /// piece of the call: the pieces of the reply would change their numbers.
    pub(crate) fn resume(&self, pieces: &Pieces) -> bool {
        let mut state = self.0.state.lock();
        if !state.ends.is_empty() {
            return false;
        }
        for piece in &pieces.pieces {
            state.push(piece);
        }
        state.resumed = pieces.len();
        state.sent = state.encoded.len();
        true
    }

    pub(crate) fn set_max_pieces(&self, pieces: usize) {
        self.0.state.lock().most = Some(pieces);
    }

    pub(crate) fn set_input_tokens(&self, tokens: u64) {
        self.0.state.lock().input_tokens = Some(tokens);
    }

    /// Equivalent of [`Reader::close`], for test code that knows at once that the call has
    /// returned.
    #[cfg(feature = "testing")]
    pub(crate) fn close(&self) {
        self.0.state.lock().closed = true;
    }

    /// Returns the reason for the stop, if there is one, and records that the handler has seen it.
    pub(crate) fn see_stop(&self) -> Option<Stop> {
        let mut state = self.0.state.lock();
        state.told |= state.stop.is_some();
        state.stop
    }

    /// Waits until `check` returns a value. Calls it first and after each change.
    pub(crate) async fn until<T>(&self, check: impl Fn() -> Option<T>) -> T {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(value) = check() {
                return value;
            }
            changed.await;
        }
    }

    pub(crate) fn on_change(&self, wake: Wake) {
        self.0.state.lock().wake = Some(wake);
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// Reading half, held by the bridge.
pub struct Reader(Arc<Shared>);

impl Reader {
    /// Returns the number of pieces, including resumed ones.
    pub fn len(&self) -> usize {
        self.0.state.lock().ends.len()
    }

    /// Returns true if there is no piece yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the total size of all pieces in bytes, without their length fields.
    pub fn bytes(&self) -> u64 {
        let state = self.0.state.lock();
        (state.encoded.len() - LENGTH_BYTES * state.ends.len()) as u64
    }

    /// Returns the number of leading pieces that came from a resume.
    pub fn resumed(&self) -> usize {
        self.0.state.lock().resumed
    }

    /// Returns the maximum number of pieces, if the handler has declared one.
    pub fn max_pieces(&self) -> Option<usize> {
        self.0.state.lock().most
    }

    /// Returns the number of tokens of the prompt, if the handler has declared it.
    pub fn input_tokens(&self) -> Option<u64> {
        self.0.state.lock().input_tokens
    }

    /// Estimates the maximum remaining time of the call from its pace so far. Returns `None` if
    /// there is no basis for an estimate.
    pub fn expected_to_take(&self) -> Option<Duration> {
        let state = self.0.state.lock();
        let (most, since) = (state.most?, state.first_new?);
        // The time to the first piece is that of the prompt, so it does not count for the pace.
        let paced = state.ends.len().checked_sub(state.resumed + 1).filter(|paced| *paced > 0)?;
        let left = most.saturating_sub(state.ends.len());
        let seconds = since.elapsed().as_secs_f64() / paced as f64 * left as f64;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// Creates a cursor over the pieces.
    pub fn cursor(&self, start: StartAt) -> Cursor {
        Cursor { shared: self.0.clone(), start, next: 0 }
    }

    /// Returns a copy of all pieces.
    pub fn pieces(&self) -> Pieces {
        let mut list = Vec::new();
        self.cursor(StartAt::PieceZero).read(usize::MAX, &mut list);
        // An empty transcript has no piece list.
        Pieces::decode(&list).unwrap_or_default()
    }

    /// Marks all pieces as sent, so that the handler can emit more.
    pub fn mark_all_sent(&self) {
        self.0.mark_sent(usize::MAX);
    }

    /// Makes every further emit fail with `stop`. The first reason stays.
    pub fn stop(&self, stop: Stop) {
        let wake = {
            let mut state = self.0.state.lock();
            state.stop.get_or_insert(stop);
            state.wake.clone()
        };
        self.0.tell(wake);
    }

    /// Returns the reason for the stop, if there is one.
    pub fn stopped(&self) -> Option<Stop> {
        self.0.state.lock().stop
    }

    /// Waits until the call is stopped.
    pub async fn stopping(&self) {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.stopped().is_some() {
                return;
            }
            changed.await;
        }
    }

    /// Returns true if the handler has seen the stop, in an emit or a check. Its return value is
    /// then not the whole reply, even if it claims success.
    pub fn told(&self) -> bool {
        self.0.state.lock().told
    }

    /// Refuses further pieces, because the call has returned.
    pub fn close(&self) {
        self.0.state.lock().closed = true;
        self.0.tell(None);
    }

    /// Returns true if a piece was emitted after [`close`](Self::close).
    pub fn late(&self) -> bool {
        self.0.state.lock().late
    }
}

impl Drop for Reader {
    /// Stops the call, because its pieces are no longer read.
    fn drop(&mut self) {
        self.stop(Stop::HandOff);
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("pieces", &self.len()).finish_non_exhaustive()
    }
}

/// Starting point of a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// First piece after those of a resume, if the handler accepts them. For the first stream of a
    /// run.
    FirstNew,
    /// First piece of the reply. For a stream that takes over from another stream of the same run.
    PieceZero,
}

/// Position in a transcript. It hands out the pieces in batches, each piece once and in order.
pub struct Cursor {
    shared: Arc<Shared>,
    start: StartAt,
    /// Index of the piece after the last batch.
    next: usize,
}

impl Cursor {
    /// Returns the index of the next piece.
    pub fn position(&self) -> usize {
        self.position_in(&self.shared.state.lock())
    }

    /// The handler accepts a resume before its first piece or never, so the position is final once
    /// there is a piece to read.
    fn position_in(&self, state: &State) -> usize {
        match self.start {
            StartAt::FirstNew => self.next.max(state.resumed),
            StartAt::PieceZero => self.next,
        }
    }

    /// Returns true if all pieces so far were read.
    pub fn is_at_end(&self) -> bool {
        let state = self.shared.state.lock();
        self.position_in(&state) == state.ends.len()
    }

    /// Waits until the unread pieces take at least `bytes` bytes in their encoded form, which has 4
    /// bytes for the length of each piece.
    pub async fn wait_for_bytes(&self, bytes: usize) {
        loop {
            let readable = self.shared.readable.notified();
            tokio::pin!(readable);
            readable.as_mut().enable();
            if self.unread_bytes() >= bytes {
                return;
            }
            readable.await;
        }
    }

    fn unread_bytes(&self) -> usize {
        let state = self.shared.state.lock();
        state.encoded.len() - state.start(self.position_in(&state))
    }

    /// Appends the next batch to `content` as a piece list: the index of its first piece, then
    /// encoded pieces of up to `max` bytes, but at least one. Returns the number of pieces. Appends
    /// nothing if there are none.
    pub fn read(&mut self, max: usize, content: &mut Vec<u8>) -> usize {
        let state = self.shared.state.lock();
        let first = self.position_in(&state);
        let start = state.start(first);
        let mut end = first;
        while end < state.ends.len() && (end == first || state.ends[end] - start <= max) {
            end += 1;
        }
        if end > first {
            // Copied in their encoded form, so they are not decoded and encoded again.
            Pieces::write(content, first as u32, std::iter::empty());
            content.extend(&state.encoded[start..state.start(end)]);
        }
        drop(state);
        self.next = end;
        end - first
    }

    /// Marks all pieces of the batches so far as sent, so that the handler can emit more. Sent means
    /// published; the broker may not have confirmed the frame yet.
    pub fn mark_sent(&self) {
        self.shared.mark_sent(self.next);
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor").field("next", &self.next).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
