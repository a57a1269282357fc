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
    Error::fatal(format!("{path} in {} cannot be used: {}", model.folder_place(), quote(what)))
}

/// Returns what a file is instead of a checkpoint, and what to do, if its first bytes tell.
pub(crate) fn other_content(head: &[u8]) -> Option<&'static str> {
    let text = head.trim_ascii_start();
    if head.starts_with(b"version https://git-lfs") {
        Some("it is a Git LFS pointer, not the file itself: fetch the file with `git lfs pull`")
    } else if text.first() == Some(&b'<') {
        Some(
            "it is a web page, not the file itself: look at it for the reason, and fetch the file again",
        )
    } else {
        None
    }
}
