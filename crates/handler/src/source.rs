//! The seam between what reads a model and what brings its bytes.
//!
//! A handler sees a [`Model`](crate::Model); the bridge, or a folder, is a [`Source`].

mod folder;

use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;

use crate::{Buffer, Error, Result};

pub(crate) use folder::Folder;
pub use folder::{digest_of, files_of, links_out_of};

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Its path within the model, with `/` between the parts.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
}

/// A stretch of a file that is wanted in one piece of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The file, as an index into [`Source::files`].
    pub file: usize,
    /// The bytes.
    pub range: Range<u64>,
    /// The alignment of what they are.
    pub align: usize,
}

/// Where a model's bytes come from.
///
/// # Contract
///
/// - All methods may block: they are called on threads of a handler.
/// - The files and their bytes never change: what is read twice is the same, or the second read
///   fails.
/// - Errors are sentences that name the file.
pub trait Source: Debug + Send + Sync {
    /// Where it is, for people.
    fn place(&self) -> String;

    /// Which revision of the model this is, where revisions are kept.
    fn revision(&self) -> Option<&str>;

    /// All files, ascending by path.
    fn files(&self) -> &[FileEntry];

    /// BLAKE3 of a whole file, as `b3sum` prints it.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    fn digest(&self, file: usize) -> Result<[u8; 32]>;

    /// Some stretches of files, each small enough to be copied about.
    ///
    /// # Errors
    ///
    /// One cannot be read; a stretch ends behind its file.
    fn read(&self, wanted: &[(usize, Range<u64>)]) -> Result<Vec<Vec<u8>>>;

    /// Begins to bring these extents, in this order as far as possible.
    ///
    /// # Errors
    ///
    /// An extent ends behind its file.
    fn stream(&self, extents: Vec<Extent>) -> Result<Box<dyn Stream>>;

    /// A folder with all files, for code that wants plain paths.
    ///
    /// # Errors
    ///
    /// A file cannot be brought there.
    fn dir(&self) -> Result<PathBuf>;
}

/// Extents on their way.
pub trait Stream: Debug + Send + Sync {
    /// Waits for an extent, which then belongs to the caller. An extent that is waited for is
    /// brought before those that are not.
    ///
    /// # Errors
    ///
    /// It cannot be brought, or was taken before.
    fn take(&self, extent: usize) -> Result<Buffer>;
}

/// Refuses a stretch that a file does not have.
///
/// # Errors
///
/// A sentence that names the file.
pub fn check_range(file: &FileEntry, range: &Range<u64>) -> Result<()> {
    if range.start <= range.end && range.end <= file.size {
        return Ok(());
    }
    let (path, size) = (&file.path, file.size);
    Err(Error::fatal(format!("{path} has {size} bytes, not those of {range:?}")))
}
