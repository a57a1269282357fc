//! What the readers of all formats share.

use std::fmt::Display;

use nsbridge_handler::{Error, Model, quote};

/// A header longer than this is refused unread.
pub(crate) const LONGEST_HEADER: u64 = 100 << 20;

/// What of a file is read before its header's length is known.
pub(crate) const FIRST_LOOK: u64 = 256 << 10;

/// A header that is not what it should be.
pub(crate) fn broken(model: &Model, file: usize, what: impl Display) -> Error {
    let path = &model.source().files()[file].path;
    Error::fatal(format!("{path} in {} cannot be used: {}", model.place(), quote(what)))
}
