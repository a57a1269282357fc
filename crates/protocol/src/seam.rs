//! Comparison of two attempts at the same reply.

use std::borrow::Cow;

use serde_json::Value;

/// Piece that a client can compare with the same piece of another attempt.
///
/// By default whole pieces are compared. A type overrides [`seam`](Self::seam) to leave out what
/// may legitimately differ between two attempts, such as log-probabilities and timings.
pub trait Seam {
    /// Returns the bytes of `piece` that must be equal in every attempt.
    fn seam(piece: &[u8]) -> Cow<'_, [u8]> {
        Cow::Borrowed(piece)
    }
}

impl Seam for String {}
impl Seam for Value {}
impl Seam for Vec<u8> {}
impl Seam for () {}
