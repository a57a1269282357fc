//! Input of the handlers, and the reference reply of the scripted handler.

use nsbridge_protocol::{FinishReason, TextPiece};
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    /// Whole input for the engine handler, a `TextInput`. Some of its fields cannot be read from
    /// within a line of the journal, but a value can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) input: Option<Value>,
}

/// Piece of a reply, as far as an undisturbed run decides it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// Index of the reply, for requests with several.
    pub(crate) choice: u32,
    /// Finish reason of this reply, on its last piece, for requests with several.
    pub(crate) finish_reason: Option<FinishReason>,
}

impl From<TextPiece> for Piece {
    fn from(piece: TextPiece) -> Self {
        let TextPiece { text, index: choice, finish_reason, .. } = piece;
        Self { text, choice, finish_reason }
    }
}

impl From<String> for Piece {
    fn from(text: String) -> Self {
        Self { text, choice: 0, finish_reason: None }
    }
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

/// Returns the text of the piece at `index` of the reply with this seed.
pub(crate) fn piece(seed: u64, index: usize) -> String {
    let random = Random::new(seed ^ (index as u64) << 32).next();
    format!("{index}:{:04x} ", random & 0xffff)
}

/// Returns the pieces of an undisturbed run.
pub(crate) fn lone_run(seed: u64, pieces: usize) -> Vec<Piece> {
    (0..pieces).map(|index| piece(seed, index).into()).collect()
}

/// Returns the seed of one attempt of [`Does::Differ`].
pub(crate) fn of_attempt(seed: u64, attempt: u32) -> u64 {
    seed ^ u64::from(attempt) << 40
}
