//! What can go wrong with a request, as both ends and the operator name it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a request failed: in a `final-error`, in a dead letter's `nsb-reason` header, in metrics.
///
/// The text form is what travels; the number is for `NSBE`, the one frame that cannot be sealed.
/// `docs/operating.md` has a row for each: what it means, who acts, how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// The handler refused the input; the message says why.
    BadInput,
    /// The model failed on this request, every time it was tried.
    ModelFailed,
    /// The client asked to stop.
    Cancelled,
    /// The request's finish-by time passed while it ran.
    Deadline,
    /// The request's finish-by time had passed before it ran.
    Expired,
    /// The clocks of client and worker are too far apart to judge the finish-by time.
    ClockSkew,
    /// The body is not a request of this protocol.
    Malformed,
    /// The body is of a version, suite or key provider this worker does not speak.
    UnsupportedVersion,
    /// The body is larger than a request may be.
    Oversized,
    /// No key with this id is in the worker's keyring.
    UnknownKey,
    /// The key with this id is not the one the request was sealed with.
    WrongKey,
    /// The key is right, the bytes were changed on the way.
    Tampered,
    /// The request is for another model than the one served here.
    WrongModel,
    /// The key does not serve this model or tenant.
    KeyScope,
    /// The request was delivered too often without an end; it may be what kills its workers.
    Poison,
    /// The reply grew beyond what a stream may hold.
    ReplyTooLarge,
    /// The key service refused.
    KeyDenied,
    /// The request is for another revision of the model than the ones served.
    WrongRevision = 18,
    /// Something went wrong inside the worker. A code of a later version reads as this.
    #[serde(other)]
    Internal = 17,
}

impl ErrorCode {
    /// Every code, in the order of its numbers.
    pub const ALL: [Self; 19] = [
        Self::BadInput,
        Self::ModelFailed,
        Self::Cancelled,
        Self::Deadline,
        Self::Expired,
        Self::ClockSkew,
        Self::Malformed,
        Self::UnsupportedVersion,
        Self::Oversized,
        Self::UnknownKey,
        Self::WrongKey,
        Self::Tampered,
        Self::WrongModel,
        Self::KeyScope,
        Self::Poison,
        Self::ReplyTooLarge,
        Self::KeyDenied,
        Self::Internal,
        Self::WrongRevision,
    ];

    /// The code as it travels, such as `wrong-key`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadInput => "bad-input",
            Self::ModelFailed => "model-failed",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
            Self::Expired => "expired",
            Self::ClockSkew => "clock-skew",
            Self::Malformed => "malformed",
            Self::UnsupportedVersion => "unsupported-version",
            Self::Oversized => "oversized",
            Self::UnknownKey => "unknown-key",
            Self::WrongKey => "wrong-key",
            Self::Tampered => "tampered",
            Self::WrongModel => "wrong-model",
            Self::KeyScope => "key-scope",
            Self::Poison => "poison",
            Self::ReplyTooLarge => "reply-too-large",
            Self::KeyDenied => "key-denied",
            Self::Internal => "internal",
            Self::WrongRevision => "wrong-revision",
        }
    }

    /// The number of the code in an `NSBE` frame.
    pub fn number(self) -> u16 {
        self as u16 + 1
    }

    /// The code with this number, if there is one.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorCode;

    #[test]
    fn text_and_number_lead_back_to_the_code() {
        for code in ErrorCode::ALL {
            let json = serde_json::to_string(&code).unwrap();
            assert_eq!(json, format!("\"{}\"", code.as_str()));
            assert_eq!(ErrorCode::from_number(code.number()), Some(code));
        }
        let unknown: ErrorCode = serde_json::from_str("\"of-a-later-version\"").unwrap();
        assert_eq!(unknown, ErrorCode::Internal);
        assert_eq!(ErrorCode::from_number(0), None);
        assert_eq!(ErrorCode::from_number(ErrorCode::ALL.len() as u16 + 1), None);
    }
}
