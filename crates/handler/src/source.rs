//! Interface between the code that reads a model and the storage of its bytes.
//!
//! A handler sees a [`Model`](crate::Model); the bridge, or a folder, is a [`Source`].

mod folder;
mod gguf_file;
mod tracked;

use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;

use crate::buffer::Buffer;
use crate::error::{Error, Result};

pub(crate) use folder::Folder;
pub use folder::{digest_of, files_of, links_out_of};
pub use gguf_file::{belongs_to, gguf_in_folder, is_gguf, split_of};
pub use tracked::LoadProgress;
pub(crate) use tracked::Tracked;

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileEntry {
    /// Path within the model, with `/` between the parts.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
}

impl FileEntry {
    /// Creates the entry of a file.
    pub fn new(path: impl Into<String>, size: u64) -> Self {
        Self { path: path.into(), size }
    }
}

/// Byte range of a file that is loaded into one contiguous buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extent {
    /// Index of the file in [`Source::files`].
    pub file: usize,
    /// Byte range within the file.
    pub range: Range<u64>,
    /// Alignment of the elements in bytes.
    pub align: usize,
}

impl Extent {
    /// Creates the extent of a byte range.
    pub const fn new(file: usize, range: Range<u64>, align: usize) -> Self {
        Self { file, range, align }
    }
}

/// Storage of a model's bytes.
///
/// # Contract
///
/// - All methods may block: they are called on threads of a handler.
/// - The files and their bytes never change: a second read returns the same bytes or fails.
/// - Errors are sentences that name the file.
pub trait Source: Debug + Send + Sync {
    /// Returns the location for messages.
    fn place(&self) -> String;

    /// Returns the revision of the model, if the source keeps revisions.
    fn revision(&self) -> Option<&str>;

    /// Returns all files, in ascending order of path.
    fn files(&self) -> &[FileEntry];

    /// Returns the BLAKE3 digest of a whole file, as `b3sum` prints it.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    fn digest(&self, file: usize) -> Result<[u8; 32]>;

    /// Reads some byte ranges of files, each small enough to be copied.
    ///
    /// # Errors
    ///
    /// Returns an error if a range cannot be read or ends beyond its file.
    fn read(&self, wanted: &[(usize, Range<u64>)]) -> Result<Vec<Vec<u8>>>;

    /// Starts to load these extents, in this order as far as possible.
    ///
    /// # Errors
    ///
    /// Returns an error if an extent ends beyond its file.
    fn stream(&self, extents: Vec<Extent>) -> Result<Box<dyn Stream>>;

    /// Returns a folder with all files, for code that needs plain paths.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be provided there.
    fn dir(&self) -> Result<PathBuf>;
}

/// Extents that are being loaded.
pub trait Stream: Debug + Send + Sync {
    /// Waits for an extent and passes its ownership to the caller. An extent with a waiting caller
    /// is loaded before the others.
    ///
    /// # Errors
    ///
    /// Returns an error if the extent cannot be loaded or was taken before.
    fn take(&self, extent: usize) -> Result<Buffer>;
}

/// Checks that a byte range lies within a file.
///
/// # Errors
///
/// Returns an error that names the file if it does not.
pub fn check_range(file: &FileEntry, range: &Range<u64>) -> Result<()> {
    if range.start <= range.end && range.end <= file.size {
        return Ok(());
    }
    let (path, size) = (&file.path, file.size);
    Err(Error::fatal(format!("{path} has {size} bytes, not those of {range:?}")))
}
