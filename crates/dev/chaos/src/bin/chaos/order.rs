//! Input of the scripted handler, and the reference text of each request.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// Input of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Index of the request in its plan.
    pub(crate) n: usize,
    pub(crate) pieces: usize,
    /// Delay before each piece, in milliseconds.
    pub(crate) every_ms: u64,
    /// Ignores the pieces that the client already has and starts from the beginning: slower, but
    /// correct.
    pub(crate) deaf: bool,
    pub(crate) does: Does,
    /// Prompt of the request, for the engine handler.
    #[serde(default)]
    pub(crate) prompt: Option<String>,
}

/// Misbehavior of the scripted handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Does {
    /// No misbehavior.
    Say,
    /// Aborts the process at this piece, in every attempt.
    AbortAt(usize),
    /// Panics at this piece, in the first attempt.
    PanicAt(usize),
    /// Blocks its thread at this piece for this number of milliseconds, in the first attempt.
    BlockAt(usize, u64),
    /// Emits another text in each attempt, which breaks the handler's contract.
    Differ,
}

/// Returns the piece at `index` of the reply with this seed.
pub(crate) fn piece(seed: u64, index: usize) -> String {
    let random = Random::new(seed ^ (index as u64) << 32).next();
    format!("{index}:{:04x} ", random & 0xffff)
}

/// Returns the text of an undisturbed run, piece by piece.
pub(crate) fn lone_run(seed: u64, pieces: usize) -> Vec<String> {
    (0..pieces).map(|index| piece(seed, index)).collect()
}

/// Returns the seed of one attempt of [`Does::Differ`].
pub(crate) fn of_attempt(seed: u64, attempt: u32) -> u64 {
    seed ^ u64::from(attempt) << 40
}
