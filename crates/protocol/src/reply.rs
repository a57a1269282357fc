//! How a reply ends.

use serde::{Deserialize, Serialize};

use crate::ErrorCode;

/// Why a handler stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model came to its end.
    Stop,
    /// The longest allowed reply was reached.
    Length,
    /// A stop text of the request was met.
    StopText,
    /// A reason of a later version.
    #[serde(other)]
    Other,
}

/// What a request cost, in the model's own tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Tokens of the reply.
    pub output_tokens: u64,
    /// Tokens of the prompt that a cache already held.
    pub cached_tokens: u64,
    /// Tokens that were guessed ahead, and run to see whether they are the reply's.
    #[serde(skip_serializing_if = "is_zero")]
    pub drafted_tokens: u64,
    /// How many of these were.
    #[serde(skip_serializing_if = "is_zero")]
    pub accepted_tokens: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde wants")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A handler's verdict on a reply that came out well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Why it stopped.
    pub reason: FinishReason,
    /// What it cost; zeros where tokens mean nothing.
    pub usage: Usage,
}

impl Finish {
    /// The model came to its end.
    pub const STOP: Self = Self::because(FinishReason::Stop);

    /// The longest allowed reply was reached.
    pub const LENGTH: Self = Self::because(FinishReason::Length);

    /// A finish for this reason, that counts no tokens yet.
    pub const fn because(reason: FinishReason) -> Self {
        let usage = Usage {
            input_tokens: 0,
            output_tokens: 0,
            cached_tokens: 0,
            drafted_tokens: 0,
            accepted_tokens: 0,
        };
        Self { reason, usage }
    }

    /// The same finish, with what it cost.
    pub const fn with_usage(self, usage: Usage) -> Self {
        Self { usage, ..self }
    }
}

/// The sealed body of a `final-ok`: the counts a client checks its copy against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Data frames sent on this stream.
    pub chunks: u64,
    /// Bytes of all pieces of the reply, resumed ones included.
    pub bytes: u64,
    /// Pieces of the reply, resumed ones included.
    #[serde(default)]
    pub pieces: u64,
    /// Why the handler stopped.
    #[serde(default = "stop")]
    pub finish_reason: FinishReason,
    /// What the reply cost.
    #[serde(default)]
    pub usage: Usage,
}

fn stop() -> FinishReason {
    FinishReason::Stop
}

/// The longest message of a failure in bytes: it may quote an input, and a frame has an end.
const MAX_MESSAGE_BYTES: usize = 4096;

/// The sealed body of a `final-error`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of failure it is.
    pub code: ErrorCode,
    /// One sentence for the person who sent the request.
    pub message: String,
    /// Data frames sent on this stream.
    #[serde(default)]
    pub chunks: u64,
}

impl Failure {
    /// A failure before any data frame; a long message is cut.
    pub fn new(code: ErrorCode, mut message: String) -> Self {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        Self { code, message, chunks: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::{ErrorCode, Failure};

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let failure = Failure::new(ErrorCode::BadInput, "く".repeat(100_000));
        assert_eq!(failure.message, "く".repeat(4096 / 3));
        assert_eq!(Failure::new(ErrorCode::BadInput, "short".into()).message, "short");
    }
}
