//! Error codes of requests, shared by clients, workers and operators.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Error code of a request: in a `final-error`, a dead letter's `nsb-reason` header and metrics.
///
/// Frames and headers carry the text form. The number is for `NSBE`, the one frame that is not
/// sealed. `docs/operating.md` has a row for each code: what it means, who acts, and how.
///
/// ```
/// use nsbridge_protocol::ErrorCode;
///
/// assert_eq!(ErrorCode::ModelFailed.as_str(), "model-failed");
/// assert_eq!(ErrorCode::from_number(ErrorCode::ModelFailed.number()), Some(ErrorCode::ModelFailed));
/// // A code of a later version is read as a failure inside the worker.
/// assert_eq!(serde_json::from_str::<ErrorCode>("\"new-code\"").unwrap(), ErrorCode::Internal);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// Input refused by the handler; the message gives the reason.
    BadInput,
    /// Failure of the model on this request, for good or in every attempt.
    ModelFailed,
    /// Cancellation by the client.
    Cancelled,
    /// Finish-by time that passed while the request ran.
    Deadline,
    /// Finish-by time that had passed before the request ran.
    Expired,
    /// Clocks of client and worker too far apart to judge the finish-by time.
    ClockSkew,
    /// Body that is not a request of this protocol.
    Malformed,
    /// Version, suite or key provider that this worker does not support.
    UnsupportedVersion,
    /// Body larger than a request may be.
    Oversized,
    /// Key id that the worker's keyring does not contain.
    UnknownKey,
    /// Key that has the right id but is not the one that sealed the request.
    WrongKey,
    /// Correct key, but bytes that were changed in transit.
    Tampered,
    /// Request for a model other than the one served here.
    WrongModel,
    /// Key that does not serve this model or tenant.
    KeyScope,
    /// Request with too many recorded runs that did not return; it may be what kills its workers.
    Poison,
    /// Reply larger than a stream may hold.
    ReplyTooLarge,
    /// Key that is disabled, not on the worker's list, or refused by the key service.
    KeyDenied,
    /// Request pinned to a model revision that no worker serves.
    WrongRevision = 18,
    /// Failure inside the worker. Codes of later versions are read as this one too.
    #[serde(other)]
    Internal = 17,
}

impl ErrorCode {
    /// All codes in the order of their numbers.
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

    /// Returns the text form of the code, such as `wrong-key`.
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

    /// Returns the number of the code in an `NSBE` frame.
    pub fn number(self) -> u16 {
        self as u16 + 1
    }

    /// Returns the code with this number, if there is one.
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
