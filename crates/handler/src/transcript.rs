//! Buffer for the pieces of one call, between the handler's thread and the bridge.
//!
//! An [`Emitter`](crate::Emitter) holds the [`Writer`]; the code that runs the call holds the
//! [`Reader`]. Pieces stay in the buffer until the call ends, because a reply stream that is lost
//! with its connection is sent again from the first piece, under another key.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nsbridge_protocol::{MAX_PIECE_BYTES, MAX_TRANSCRIPT_BYTES, Pieces};
use tokio::sync::Notify;

/// Maximum number of unsent bytes before a handler is held back.
pub(crate) const ROOM_BYTES: usize = 32 << 10;

/// Reason why a call must end before the model has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// The client is gone.
    ClientGone,
    /// The client canceled the request.
    Cancelled,
    /// The deadline of the request has passed.
    Deadline,
    /// Another attempt continues, here or in another worker: the worker must exit, or the request is a
    /// bulk request and an interactive one needs its slot.
    HandOff,
    /// A piece exceeds the maximum piece size, or the reply exceeds the maximum reply size.
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
    fn state(&self) -> MutexGuard<'_, State> {
        // A handler that panics while it emits leaves only whole pieces behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_changed(&self) {
        self.changed.notify_waiters();
        self.unblocked.notify_all();
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
            || self.encoded.len() + piece.len() > MAX_TRANSCRIPT_BYTES
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
        let mut state = self.0.state();
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
                    let state = self.0.state();
                    let waited = self.0.unblocked.wait_while(state, full);
                    drop(waited.unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }

    /// Adds the pieces that the client already has. Returns false, and adds nothing, after the first
    /// piece of the call: the pieces of the reply would change their numbers.
    pub(crate) fn resume(&self, pieces: &Pieces) -> bool {
        let mut state = self.0.state();
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
        self.0.state().most = Some(pieces);
    }

    pub(crate) fn set_input_tokens(&self, tokens: u64) {
        self.0.state().input_tokens = Some(tokens);
    }

    /// Equivalent of [`Reader::close`], for test code that knows at once that the call has
    /// returned.
    #[cfg(feature = "testing")]
    pub(crate) fn close(&self) {
        self.0.state().closed = true;
    }

    pub(crate) fn stop(&self) -> Option<Stop> {
        let mut state = self.0.state();
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
        self.0.state().wake = Some(wake);
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
        self.0.state().ends.len()
    }

    /// Returns true if there is no piece yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the total size of all pieces in bytes, without their length fields.
    pub fn bytes(&self) -> u64 {
        let state = self.0.state();
        (state.encoded.len() - 4 * state.ends.len()) as u64
    }

    /// Returns the number of leading pieces that came from a resume.
    pub fn resumed(&self) -> usize {
        self.0.state().resumed
    }

    /// Returns the maximum number of pieces, if the handler has declared one.
    pub fn max_pieces(&self) -> Option<usize> {
        self.0.state().most
    }

    /// Returns the number of tokens of the prompt, if the handler has declared it.
    pub fn input_tokens(&self) -> Option<u64> {
        self.0.state().input_tokens
    }

    /// Estimates the maximum remaining time of the call from its pace so far. Returns `None` if
    /// there is no basis for an estimate.
    pub fn expected_to_take(&self) -> Option<Duration> {
        let state = self.0.state();
        let (most, since) = (state.most?, state.first_new?);
        // The time to the first piece is that of the prompt, so it does not count for the pace.
        let paced = state.ends.len().checked_sub(state.resumed + 1).filter(|paced| *paced > 0)?;
        let left = most.saturating_sub(state.ends.len());
        let seconds = since.elapsed().as_secs_f64() / paced as f64 * left as f64;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// Waits until the pieces from `index` on take at least `bytes` bytes in their encoded form, which
    /// has 4 bytes for the length of each piece.
    pub async fn wait_for_bytes(&self, index: usize, bytes: usize) {
        loop {
            let readable = self.0.readable.notified();
            tokio::pin!(readable);
            readable.as_mut().enable();
            if self.waiting(index) >= bytes {
                return;
            }
            readable.await;
        }
    }

    /// Appends encoded pieces from `index` on to `content`, up to `max` bytes but at least one
    /// piece. Returns the number of pieces.
    pub fn read(&self, index: usize, max: usize, content: &mut Vec<u8>) -> usize {
        let state = self.0.state();
        let start = state.start(index);
        let mut end = index;
        while end < state.ends.len() && (end == index || state.ends[end] - start <= max) {
            end += 1;
        }
        content.extend(&state.encoded[start..state.start(end)]);
        end - index
    }

    /// Returns the number of unread bytes from piece `index` on.
    pub fn waiting(&self, index: usize) -> usize {
        let state = self.0.state();
        state.encoded.len() - state.start(index)
    }

    /// Marks all pieces before `index` as sent, so that the handler can emit more. Sent means
    /// published; the broker may not have confirmed the frame yet.
    pub fn sent(&self, index: usize) {
        let wake = {
            let mut state = self.0.state();
            state.sent = state.sent.max(state.start(index));
            state.wake.clone()
        };
        self.tell(wake);
    }

    /// Makes every further emit fail with `stop`. The first reason stays.
    pub fn stop(&self, stop: Stop) {
        let wake = {
            let mut state = self.0.state();
            state.stop.get_or_insert(stop);
            state.wake.clone()
        };
        self.tell(wake);
    }

    /// Returns the reason for the stop, if there is one.
    pub fn stopped(&self) -> Option<Stop> {
        self.0.state().stop
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
        self.0.state().told
    }

    /// Refuses further pieces, because the call has returned.
    pub fn close(&self) {
        self.0.state().closed = true;
        self.tell(None);
    }

    /// Returns true if a piece was emitted after [`close`](Self::close).
    pub fn late(&self) -> bool {
        self.0.state().late
    }

    fn tell(&self, wake: Option<Wake>) {
        self.0.notify_changed();
        if let Some(wake) = wake {
            wake();
        }
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

#[cfg(test)]
mod tests;
