//! Comparison of two attempts at the same reply.

use std::borrow::Cow;

use serde_json::Value;

/// Piece that a client can compare with the same piece of another attempt.
///
/// By default whole pieces are compared. A type overrides [`replay_key`](Self::replay_key) to leave
/// out what may legitimately differ between two attempts, such as log-probabilities and timings.
///
/// ```
/// use nsbridge_protocol::{ReplayKey, TextPiece};
///
/// // Log-probabilities may differ between two workers, tokens and text may not.
/// let one = TextPiece::replay_key(br#"{"token":7,"text":"bear","logprob":-0.5}"#);
/// let other = TextPiece::replay_key(br#"{"token":7,"text":"bear"}"#);
/// assert_eq!(one, other);
/// ```
pub trait ReplayKey {
    /// Returns the bytes of `piece` that must be equal in every attempt.
    fn replay_key(piece: &[u8]) -> Cow<'_, [u8]> {
        Cow::Borrowed(piece)
    }
}

impl ReplayKey for String {}
impl ReplayKey for Value {}
impl ReplayKey for Vec<u8> {}
impl ReplayKey for () {}
