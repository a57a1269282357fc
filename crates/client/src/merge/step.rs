//! Results of a frame.

use std::fmt;

use nsbridge_protocol::{ControlKind, Failure, Summary};

/// Result of a frame, for the caller or for a worker.
#[derive(PartialEq, Eq)]
pub(crate) enum Step {
    /// Next piece of the reply.
    Piece(Vec<u8>),
    /// A later attempt differs from here on: the pieces after the first `kept` are withdrawn.
    Restarted { kept: usize },
    /// The reply is complete.
    Done(Summary),
    /// The worker ended the request without a reply, or the reply is larger than any may be.
    Failed(Failure),
    /// Control frame for the worker of the newly opened stream, to be sealed under the root of its
    /// enqueue.
    Tell { enqueue: usize, kind: ControlKind, body: Vec<u8> },
}

impl fmt::Debug for Step {
    /// Leaves out the text of the reply.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Piece(piece) => write!(f, "Piece({} bytes)", piece.len()),
            Self::Restarted { kept } => write!(f, "Restarted({kept})"),
            Self::Done(summary) => write!(f, "Done({summary:?})"),
            Self::Failed(failure) => write!(f, "Failed({})", failure.code),
            Self::Tell { enqueue, kind, .. } => write!(f, "Tell({enqueue}, {kind:?})"),
        }
    }
}
