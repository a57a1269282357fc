//! Errors of sealing and opening.

use nsbridge_protocol::ErrorCode;

/// Result of sealing or opening.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of sealing or opening a frame. It contains no plaintext, so it is safe to log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Frame that the protocol does not allow, here or at all.
    #[error("the frame is not valid here: {what}")]
    Malformed {
        /// Description of the violation, a phrase.
        what: &'static str,
    },
    /// Version, suite, key provider, kind, content type or flags that are not supported.
    #[error("the frame's {what} is not supported")]
    Unsupported {
        /// Name of the unsupported field.
        what: &'static str,
    },
    /// Key other than the one that sealed the frame.
    #[error("the frame was sealed with another key")]
    WrongKey,
    /// Correct key, but changed bytes.
    #[error("the frame was changed on the way")]
    Tampered,
    /// Content larger than a frame may hold.
    #[error("{bytes} bytes are more than a frame holds ({limit})")]
    Oversized {
        /// Actual size in bytes.
        bytes: usize,
        /// Maximum size in bytes.
        limit: usize,
    },
    /// Reply stream without unused sequence numbers.
    #[error("the reply stream has no numbers left")]
    Exhausted,
    /// Operating system that provides no randomness.
    #[error("the operating system gave no random bytes")]
    NoRandomness,
}

impl Error {
    /// Returns the protocol's error code for this error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Malformed { .. } => ErrorCode::Malformed,
            Self::Unsupported { .. } => ErrorCode::UnsupportedVersion,
            Self::WrongKey => ErrorCode::WrongKey,
            Self::Tampered => ErrorCode::Tampered,
            Self::Oversized { .. } => ErrorCode::Oversized,
            Self::Exhausted | Self::NoRandomness => ErrorCode::Internal,
        }
    }
}
