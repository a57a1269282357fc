//! What a request asks of the handler, and the text that it must come to.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// The input of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The number of the request in its plan.
    pub(crate) n: usize,
    pub(crate) pieces: usize,
    /// Milliseconds before each piece.
    pub(crate) every_ms: u64,
    /// Starts over whatever the client has: slower, and just as right.
    pub(crate) deaf: bool,
    pub(crate) does: Does,
    /// What the engine goes on with, where the handler is that.
    #[serde(default)]
    pub(crate) prompt: Option<String>,
}

/// What the handler does beside saying its pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Does {
    /// Nothing.
    Say,
    /// Aborts the process at this piece, in every attempt.
    AbortAt(usize),
    /// Panics at this piece, in the first attempt.
    PanicAt(usize),
    /// Blocks its thread at this piece for this many milliseconds, in the first attempt.
    BlockAt(usize, u64),
    /// Says another text in each attempt: what no handler may do.
    Differ,
}

/// The piece at `index` of the reply that grows from `seed`.
pub(crate) fn piece(seed: u64, index: usize) -> String {
    let random = Random::new(seed ^ (index as u64) << 32).next();
    format!("{index}:{:04x} ", random & 0xffff)
}

/// What a worker says that nothing disturbs.
pub(crate) fn lone_run(seed: u64, pieces: usize) -> Vec<String> {
    (0..pieces).map(|index| piece(seed, index)).collect()
}

/// The seed of an attempt that must not differ, and does.
pub(crate) fn of_attempt(seed: u64, attempt: u32) -> u64 {
    seed ^ u64::from(attempt) << 40
}
