//! Errors of a request, as its client sees them.

use std::time::Duration;

use nsbridge_protocol::{ErrorCode, Failure, ModelName};

/// Result of a client operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client was built without a part that has no default.
    #[error("the client has no {what}: give one to its builder")]
    Incomplete {
        /// Name of the part.
        what: &'static str,
    },
    /// The keyring cannot be used.
    #[error("the keyring cannot be used")]
    Keyring(#[from] nsbridge_crypto::KeyringError),
    /// The broker is not usable.
    #[error("the queue cannot be used")]
    Queue(#[from] nsbridge_queue::Error),
    /// The key provider has no key for this request.
    #[error("no key for the request: {0}")]
    Key(#[from] nsbridge_crypto::KeyError),
    /// The request cannot be sealed.
    #[error("the request cannot be sealed: {0}")]
    Seal(#[from] nsbridge_crypto::Error),
    /// The input cannot be serialized to JSON.
    #[error("the input cannot be written as JSON")]
    Input(#[source] serde_json::Error),
    /// A piece of the reply does not decode as the requested type.
    #[error("a piece of the reply is of another type than asked for")]
    Piece(#[source] serde_json::Error),
    /// The timeout exceeds the time for which a broker lets a worker hold a message.
    #[error("a request may take {limit:?} at most, {asked:?} were asked for")]
    TooLong {
        /// Requested timeout.
        asked: Duration,
        /// Maximum timeout.
        limit: Duration,
    },
    /// No worker has ever served this model on this broker.
    #[error("there is no queue for the model {model}: start a worker for it, or check the name")]
    NoSuchModel {
        /// Name of the model.
        model: ModelName,
    },
    /// The model's queue is full.
    #[error(
        "the broker refused a request for the model {model}: try again later; the queue is full, or most \
         nodes of the broker are down"
    )]
    QueueFull {
        /// Name of the model.
        model: ModelName,
    },
    /// A worker ended the request with an error, or its reply is larger than a reply may be.
    #[error("{message} ({code})")]
    Failed {
        /// Error code.
        code: ErrorCode,
        /// Error message, one sentence.
        message: String,
    },
    /// The deadline passed.
    #[error("the reply was not complete at its deadline, {pieces} pieces were received{}", hinted(*.hint))]
    Deadline {
        /// Number of pieces received.
        pieces: usize,
        /// Last hint about the request. Hints are unsealed and may come from any publisher, so they
        /// cannot be trusted.
        hint: Option<ErrorCode>,
    },
    /// The deadline passed while frames were missing in the middle of the reply.
    #[error("the reply has a gap after {pieces} pieces that was not filled in time")]
    Truncated {
        /// Number of pieces before the gap.
        pieces: usize,
    },
    /// The request was canceled, or the client was closed.
    #[error("the request was canceled, or its client was closed")]
    Closed,
}

impl Error {
    /// Error of a request that ended with this failure.
    pub(crate) fn of(Failure { code, message, .. }: Failure) -> Self {
        Self::Failed { code, message }
    }
}

fn hinted(hint: Option<ErrorCode>) -> String {
    hint.map_or(String::new(), |code| {
        format!("; an unsealed hint says `{code}`, which any publisher on the broker may have sent")
    })
}
