//! Limits and errors that the readers of all formats share.

use std::fmt::Display;

use nsbridge_handler::{Error, Model, quote};

/// Maximum length of a header in bytes. A longer header is refused unread.
pub(crate) const LONGEST_HEADER: u64 = 100 << 20;

/// Number of bytes of a file to read before the length of its header is known.
pub(crate) const FIRST_LOOK: u64 = 256 << 10;

/// Returns the error for an invalid header.
pub(crate) fn broken(model: &Model, file: usize, what: impl Display) -> Error {
    let path = &model.source().files()[file].path;
    Error::fatal(format!("{path} in {} cannot be used: {}", model.place(), quote(what)))
}
