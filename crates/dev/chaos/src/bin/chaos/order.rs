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
    /// Ends its Python process at this piece, in the first attempt or in every one.
    Crash { how: Crash, at: usize, always: bool },
    /// Hangs in Python at this piece, in every attempt.
    Hang { how: Hang, at: usize },
}

/// Ways in which `model.py` ends its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Crash {
    Segfault,
    Exit,
    Abort,
    Kill,
    ThreadExit,
    /// Refused allocation, which ends the call alone.
    Memory,
}

/// Ways in which `model.py` hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Hang {
    /// Call into C that keeps the interpreter's lock.
    CCall,
    /// Call into C without the lock.
    Sleep,
    EndlessThread,
    /// Loop that catches every exception.
    StubbornLoop,
    /// Wait for a child process that does not end.
    Child,
    /// Loop in Python, which an exception ends.
    Spin,
    /// Loop that asks if it must end.
    Patient,
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
