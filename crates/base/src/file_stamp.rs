//! Identity of a file's version, for files that are read again when they change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identity of a file version: device, inode, length, mtime and ctime (change of owner or mode).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp([i128; 5]);

impl FileStamp {
    /// Returns the identity of the file's version; `None` if its metadata cannot be read.
    pub fn of(path: &Path) -> Option<Self> {
        let status = fs::metadata(path).ok()?;
        let time = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Some(Self([
            status.dev().into(),
            status.ino().into(),
            status.len().into(),
            time(status.mtime(), status.mtime_nsec()),
            time(status.ctime(), status.ctime_nsec()),
        ]))
    }
}

/// Outcome of a look at a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reload {
    /// File that has not changed.
    Unchanged,
    /// File that has changed and is in use from now on.
    Taken,
}
