//! Why a frame could not be sealed or opened.

use nsbridge_protocol::ErrorCode;

/// The result of sealing or opening.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a frame could not be sealed or opened. Safe to log: nothing in it was ever plaintext.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a frame of this protocol.
    #[error("not a frame of the protocol: {what}")]
    Malformed {
        /// The first thing that does not fit.
        what: &'static str,
    },
    /// The frame is of a version, suite, provider or with flags that are not spoken here.
    #[error("the frame's {what} is not supported")]
    Unsupported {
        /// Which of them.
        what: &'static str,
    },
    /// The key is not the one the frame was sealed with.
    #[error("the frame was sealed with another key")]
    WrongKey,
    /// The key is right, the bytes are not.
    #[error("the frame was changed on the way")]
    Tampered,
    /// The content is larger than a frame may hold.
    #[error("{bytes} bytes are more than a frame holds ({limit})")]
    Oversized {
        /// Bytes there are.
        bytes: usize,
        /// Bytes there may be.
        limit: usize,
    },
    /// A reply stream has used up its numbers.
    #[error("the reply stream has no numbers left")]
    Exhausted,
    /// The operating system gave no randomness.
    #[error("the operating system gave no random bytes")]
    NoRandomness,
}

impl Error {
    /// What both ends call this.
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
