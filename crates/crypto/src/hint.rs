//! Unencrypted error hint `NSBE`: tells a client that its request cannot be answered here, or
//! waits.
//!
//! Layout: `"NSBE", u8 version, u8 0, u16 code, 16 request id`. Anyone on the broker can forge it,
//! so a client may show it and must not act on it.

use nsbridge_protocol::{ErrorCode, RequestId};

use crate::layout::VERSION;

const MAGIC: &[u8; 4] = b"NSBE";

/// Unauthenticated notice of a worker that a request cannot be opened or answered here, or waits
/// for a key or another worker.
///
/// ```
/// use nsbridge_crypto::ErrorHint;
/// use nsbridge_protocol::{ErrorCode, RequestId};
///
/// let hint = ErrorHint { request: RequestId::from_bytes([7; 16]), code: ErrorCode::UnknownKey };
/// assert_eq!(ErrorHint::parse(&hint.encode()), Some(hint));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorHint {
    /// Request that the hint concerns.
    pub request: RequestId,
    /// Error code. Unknown numbers are read as internal.
    pub code: ErrorCode,
}

impl ErrorHint {
    /// Encodes the hint. It is neither encrypted nor authenticated.
    pub fn encode(self) -> Vec<u8> {
        let mut frame = MAGIC.to_vec();
        frame.extend([VERSION, 0]);
        frame.extend(self.code.number().to_be_bytes());
        frame.extend(self.request.as_bytes());
        frame
    }

    /// Parses the frame; returns `None` if it is not a hint.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let rest = frame.strip_prefix(MAGIC)?.strip_prefix(&[VERSION, 0])?;
        let (number, id) = rest.split_first_chunk::<2>()?;
        let code = ErrorCode::from_number(u16::from_be_bytes(*number));
        let request = RequestId::from_bytes(id.try_into().ok()?);
        Some(Self { request, code: code.unwrap_or(ErrorCode::Internal) })
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_protocol::{ErrorCode, RequestId};

    use super::ErrorHint;

    #[test]
    fn a_hint_reads_back_and_a_cut_one_does_not() {
        let request = RequestId::from_bytes([9; 16]);
        let hint = ErrorHint { request, code: ErrorCode::WrongKey };
        let frame = hint.encode();
        assert_eq!(frame.len(), 24);
        assert_eq!(ErrorHint::parse(&frame), Some(hint));
        assert_eq!(ErrorHint::parse(&frame[..23]), None);
    }
}
