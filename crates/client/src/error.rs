//! What can go wrong with a request, as its client sees it.

use std::time::Duration;

use nsbridge_protocol::{ErrorCode, ModelName};

/// The result of a client's operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker cannot be used.
    #[error("the queue cannot be used")]
    Queue(#[from] nsbridge_queue::Error),
    /// There is no key for this request.
    #[error("no key for the request: {0}")]
    Key(#[from] nsbridge_crypto::KeyError),
    /// The request cannot be sealed.
    #[error("the request cannot be sealed: {0}")]
    Seal(#[from] nsbridge_crypto::Error),
    /// The input is no JSON.
    #[error("the input cannot be written as JSON")]
    Input(#[source] serde_json::Error),
    /// A piece of the reply is not of the type that was asked for.
    #[error("a piece of the reply is of another type than asked for")]
    Piece(#[source] serde_json::Error),
    /// The time asked for is longer than a broker lets a worker hold a message.
    #[error("a request may take {limit:?} at most, {asked:?} were asked for")]
    TooLong {
        /// What was asked for.
        asked: Duration,
        /// What is possible.
        limit: Duration,
    },
    /// No worker has ever served this model on this broker.
    #[error("there is no queue for the model {model}: start a worker for it, or check the name")]
    NoSuchModel {
        /// The model.
        model: ModelName,
    },
    /// The model's queue is full.
    #[error("the queue of the model {model} is full: try again later")]
    QueueFull {
        /// The model.
        model: ModelName,
    },
    /// A worker ended the request.
    #[error("{message} ({code})")]
    Failed {
        /// What kind of failure.
        code: ErrorCode,
        /// One sentence.
        message: String,
    },
    /// The finish-by time passed.
    #[error("no complete answer came in time: {pieces} pieces{}", hinted(*.hint))]
    Deadline {
        /// Pieces that had come.
        pieces: usize,
        /// What somebody on the broker said, unsealed and so not to be trusted.
        hint: Option<ErrorCode>,
    },
    /// The finish-by time passed while frames were missing in the middle.
    #[error("the reply has a gap after {pieces} pieces that nobody filled in time")]
    Truncated {
        /// Pieces before the gap.
        pieces: usize,
    },
    /// The caller read too slowly.
    #[error("the reply was dropped because nobody read it: more than {limit} pieces waited")]
    SlowConsumer {
        /// Pieces that may wait.
        limit: usize,
    },
    /// The client was closed.
    #[error("the client was closed")]
    Closed,
}

fn hinted(hint: Option<ErrorCode>) -> String {
    hint.map_or(String::new(), |code| {
        format!("; an unsealed hint says `{code}`, which anybody on the broker may have sent")
    })
}
