//! The pieces of one call, on their way from the handler's thread to the bridge.
//!
//! The writing half is what an [`Emitter`](crate::Emitter) holds; the reading half belongs to
//! whoever runs the call. Pieces stay here until the call ends: a reply stream that dies with its
//! connection is sent again from the first piece, under another key.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nsbridge_protocol::{MAX_FRAME_BYTES, MAX_TRANSCRIPT_BYTES, Pieces};
use tokio::sync::Notify;

/// Bytes that may wait to be sent before a handler is held back.
pub(crate) const ROOM_BYTES: usize = 32 << 10;

/// Why a call is to end before the model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// Nobody listens any more.
    ClientGone,
    /// The client asked for it.
    Cancelled,
    /// The request's finish-by time has come.
    Deadline,
    /// The worker must leave and another one goes on.
    HandOff,
    /// A piece is larger than a frame may hold, or the reply larger than a stream.
    TooLarge,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClientGone => "the client is gone",
            Self::Cancelled => "the client cancelled",
            Self::Deadline => "the finish-by time has come",
            Self::HandOff => "the worker hands the job over",
            Self::TooLarge => "the reply is larger than a stream may hold",
        })
    }
}

/// Makes the two halves of an empty transcript.
pub fn transcript() -> (Writer, Reader) {
    let shared = Arc::new(Shared::default());
    (Writer(shared.clone()), Reader(shared))
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Woken when there is something to read.
    readable: Notify,
    /// Woken when there is room, or the call is to stop.
    changed: Notify,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic of the handler while it emitted leaves whole pieces behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct State {
    /// `u32 length, bytes` for each piece: ready to be copied into a frame.
    encoded: Vec<u8>,
    /// Where each piece ends in `encoded`.
    ends: Vec<usize>,
    /// Up to where `encoded` was sent.
    sent: usize,
    /// The index of the first piece that is new: those before came from a resume.
    resumed: usize,
    /// The most pieces that there will be, if the handler said so.
    most: Option<usize>,
    /// When the first new piece came.
    first_new: Option<Instant>,
    stop: Option<Stop>,
    /// The handler was told so: what it returns then is not the whole reply.
    told: bool,
    closed: bool,
    /// A piece came after that.
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
        } else if piece.len() > MAX_FRAME_BYTES
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

/// The handler's half.
#[derive(Clone)]
pub struct Writer(Arc<Shared>);

impl Writer {
    /// Appends a piece if there is room.
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
                self.0.changed.notify_waiters();
            }
            Admission::Closed => state.late = true,
            Admission::Full => {}
        }
        admission
    }

    /// Takes over the pieces that a client already has. Only before the first piece.
    pub(crate) fn resume(&self, pieces: &Pieces) {
        let mut state = self.0.state();
        for piece in &pieces.pieces {
            state.push(piece);
        }
        state.resumed = pieces.len();
        state.sent = state.encoded.len();
    }

    pub(crate) fn at_most(&self, pieces: usize) {
        self.0.state().most = Some(pieces);
    }

    /// [`Reader::close`], from the side that knows at once that the call has returned.
    #[cfg(feature = "testing")]
    pub(crate) fn close(&self) {
        self.0.state().closed = true;
    }

    pub(crate) fn stop(&self) -> Option<Stop> {
        let mut state = self.0.state();
        state.told |= state.stop.is_some();
        state.stop
    }

    /// Waits until room or a stop may have come; `check` is asked before each wait.
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

/// The bridge's half.
pub struct Reader(Arc<Shared>);

impl Reader {
    /// How many pieces there are, resumed ones included.
    pub fn len(&self) -> usize {
        self.0.state().ends.len()
    }

    /// Whether there is no piece yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all pieces, without their lengths.
    pub fn bytes(&self) -> u64 {
        let state = self.0.state();
        (state.encoded.len() - 4 * state.ends.len()) as u64
    }

    /// How many pieces at the start came from a resume.
    pub fn resumed(&self) -> usize {
        self.0.state().resumed
    }

    /// How much longer the call takes at most, judged by what it has made so far; `None` if that
    /// cannot be said.
    pub fn expected_to_take(&self) -> Option<Duration> {
        let state = self.0.state();
        let (most, since) = (state.most?, state.first_new?);
        // The first piece's own time is the prompt's, not the pace.
        let paced = state.ends.len().checked_sub(state.resumed + 1).filter(|paced| *paced > 0)?;
        let left = most.saturating_sub(state.ends.len());
        let seconds = since.elapsed().as_secs_f64() / paced as f64 * left as f64;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// Waits until at least `bytes` bytes wait from piece `index` on.
    pub async fn holds(&self, index: usize, bytes: usize) {
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

    /// Appends encoded pieces from `index` on, up to `max` bytes but at least one piece, to
    /// `content`; tells how many.
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

    /// Bytes from piece `index` on that wait to be read.
    pub fn waiting(&self, index: usize) -> usize {
        let state = self.0.state();
        state.encoded.len() - state.start(index)
    }

    /// Makes room for what was sent: all pieces before `index`.
    pub fn sent(&self, index: usize) {
        let wake = {
            let mut state = self.0.state();
            state.sent = state.sent.max(state.start(index));
            state.wake.clone()
        };
        self.tell(wake);
    }

    /// Makes every further emit fail with `stop`; the first reason stays.
    pub fn stop(&self, stop: Stop) {
        let wake = {
            let mut state = self.0.state();
            state.stop.get_or_insert(stop);
            state.wake.clone()
        };
        self.tell(wake);
    }

    /// Why the call was told to stop, if it was.
    pub fn stopped(&self) -> Option<Stop> {
        self.0.state().stop
    }

    /// Waits until the call is told to stop.
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

    /// Whether the handler has met the stop, in an emit or a check. What it returns then is not the
    /// whole reply, whatever it says.
    pub fn told(&self) -> bool {
        self.0.state().told
    }

    /// Refuses further pieces: the call has returned.
    pub fn close(&self) {
        self.0.state().closed = true;
        self.tell(None);
    }

    /// Whether a piece was emitted after [`close`](Self::close).
    pub fn late(&self) -> bool {
        self.0.state().late
    }

    fn tell(&self, wake: Option<Wake>) {
        self.0.changed.notify_waiters();
        if let Some(wake) = wake {
            wake();
        }
    }
}

impl Drop for Reader {
    /// A call that nobody reads from any more is over.
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
