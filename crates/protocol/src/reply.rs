//! End of a reply: finish reason, token usage, summary and failure.

use serde::{Deserialize, Serialize};

use crate::code::ErrorCode;

/// Reason for which a handler stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// End token of the model, or another natural end.
    Stop,
    /// Maximum length of the reply.
    Length,
    /// Stop sequence of the request.
    StopText,
    /// Judge of the worker that refused the prompt or a part of the reply. The refused text is not
    /// part of the reply.
    ContentFilter,
    /// Reason from a later version of the protocol.
    #[serde(other)]
    Other,
}

/// Token usage of a request, counted in the model's own tokens.
///
/// ```
/// use nsbridge_protocol::Usage;
///
/// let usage = Usage::new(12, 40).with_cached(8);
/// assert_eq!((usage.input_tokens, usage.output_tokens, usage.cached_tokens), (12, 40, 8));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Tokens of the reply.
    pub output_tokens: u64,
    /// Tokens of the prompt that were already in a KV cache.
    pub cached_tokens: u64,
    /// Tokens proposed by a draft and verified by the target model.
    #[serde(skip_serializing_if = "is_zero")]
    pub drafted_tokens: u64,
    /// Drafted tokens that the target model accepted.
    #[serde(skip_serializing_if = "is_zero")]
    pub accepted_tokens: u64,
}

impl Usage {
    /// Creates the usage of a prompt and its reply, without cached and drafted tokens.
    pub const fn new(input_tokens: u64, output_tokens: u64) -> Self {
        Self {
            input_tokens,
            output_tokens,
            cached_tokens: 0,
            drafted_tokens: 0,
            accepted_tokens: 0,
        }
    }

    /// Sets the number of prompt tokens that were already in a KV cache.
    #[must_use]
    pub const fn with_cached(self, cached_tokens: u64) -> Self {
        Self { cached_tokens, ..self }
    }

    /// Sets the numbers of drafted tokens, and of those that the target model accepted.
    #[must_use]
    pub const fn with_drafted(self, drafted_tokens: u64, accepted_tokens: u64) -> Self {
        Self { drafted_tokens, accepted_tokens, ..self }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde wants")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Successful result of a handler.
///
/// ```
/// use nsbridge_protocol::{Finish, FinishReason, Usage};
///
/// let finish = Finish::LENGTH.with_usage(Usage::new(12, 40));
/// assert_eq!(finish.reason, FinishReason::Length);
/// assert_eq!(finish.usage.output_tokens, 40);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finish {
    /// Reason for the end.
    pub reason: FinishReason,
    /// Token usage; zeros for models without tokens.
    pub usage: Usage,
}

impl Finish {
    /// Finish with [`FinishReason::Stop`] and zero usage.
    pub const STOP: Self = Self::because(FinishReason::Stop);

    /// Finish with [`FinishReason::Length`] and zero usage.
    pub const LENGTH: Self = Self::because(FinishReason::Length);

    /// Finish with [`FinishReason::ContentFilter`] and zero usage.
    pub const CONTENT_FILTER: Self = Self::because(FinishReason::ContentFilter);

    /// Creates a finish with this reason and zero usage.
    pub const fn because(reason: FinishReason) -> Self {
        Self { reason, usage: Usage::new(0, 0) }
    }

    /// Returns this finish with the given usage.
    pub const fn with_usage(self, usage: Usage) -> Self {
        Self { usage, ..self }
    }
}

/// Sealed content of a `final-ok`: counts that a client checks its copy of the reply against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// Number of data frames sent on this stream.
    pub chunks: u64,
    /// Size of all pieces of the reply in bytes, resumed ones included.
    pub bytes: u64,
    /// Number of pieces of the reply, resumed ones included.
    #[serde(default)]
    pub pieces: u64,
    /// Reason for which the handler stopped.
    #[serde(default = "stop")]
    pub finish_reason: FinishReason,
    /// Token usage of the reply.
    #[serde(default)]
    pub usage: Usage,
}

impl Summary {
    /// Creates the summary of a reply with this end and counts of zero.
    pub const fn new(finish: Finish) -> Self {
        let Finish { reason, usage } = finish;
        Self { chunks: 0, bytes: 0, pieces: 0, finish_reason: reason, usage }
    }
}

fn stop() -> FinishReason {
    FinishReason::Stop
}

/// Maximum size of a failure message, in bytes.
///
/// The message may quote an input, and a frame has a size limit.
const MAX_MESSAGE_BYTES: usize = 4096;

/// Sealed content of a `final-error`.
///
/// ```
/// use nsbridge_protocol::{ErrorCode, Failure};
///
/// let failure = Failure::new(ErrorCode::BadInput, "`prompt` is empty".to_owned());
/// assert_eq!(failure.code.as_str(), "bad-input");
/// // A message that may quote a long input is cut.
/// assert_eq!(Failure::new(ErrorCode::BadInput, "x".repeat(10_000)).message.len(), 4096);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// Kind of the failure.
    pub code: ErrorCode,
    /// One sentence for the person who sent the request.
    pub message: String,
    /// Number of data frames sent on this stream.
    #[serde(default)]
    pub chunks: u64,
}

impl Failure {
    /// Creates a failure without data frames; a message that is too long is cut.
    pub fn new(code: ErrorCode, mut message: String) -> Self {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        Self { code, message, chunks: 0 }
    }

    /// Sets the number of data frames sent on the stream.
    #[must_use]
    pub fn with_chunks(self, chunks: u64) -> Self {
        Self { chunks, ..self }
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
