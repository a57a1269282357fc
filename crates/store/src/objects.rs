//! Storage backends of a model's files: a prefix of a bucket, or a folder.

mod folder;
#[cfg(feature = "s3")]
pub(crate) mod s3;

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub(crate) use folder::Folder;

use crate::chunk_writer::ChunkWriter;
use crate::error::{Fault, StoreError};
use crate::rate_limit::RateLimit;
use crate::stats::Count;

/// File as the backend lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Path below the prefix.
    pub(crate) path: String,
    pub(crate) size: u64,
    /// Version tag that changes with the content.
    pub(crate) etag: Option<String>,
}

/// Limits of a read, and the counter of its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    /// Time without a byte after which the read is aborted.
    pub(crate) stall: Duration,
    /// Rate limiter shared by all reads.
    pub(crate) rate_limit: &'a RateLimit,
    /// Counter of the bytes that arrive, as they do.
    pub(crate) arrived: &'a Count,
}

/// Storage backend that holds files.
#[async_trait]
pub(crate) trait Objects: Debug + Send + Sync {
    /// Returns the address of a file for messages.
    fn address(&self, path: &str) -> String;

    /// Lists all files below the prefix.
    async fn list(&self) -> Result<Vec<Object>, Fault>;

    /// Reads a whole small file of at most `most` bytes; returns `None` if there is none.
    async fn get(&self, path: &str, most: u64) -> Result<Option<Bytes>, Fault>;

    /// Reads a range of an object into a writer with exactly that much space left. After an error the
    /// writer tells how many bytes arrived. If the object has an ETag, the content must have the same
    /// one.
    async fn read(
        &self,
        object: &Object,
        range: Range<u64>,
        writer: ChunkWriter,
        how: Reading<'_>,
    ) -> (ChunkWriter, Result<(), Fault>);

    /// Writes a small file. With `only_new` an existing file is left alone and the result is
    /// `false`.
    async fn put(&self, path: &str, content: Vec<u8>, only_new: bool) -> Result<bool, Fault>;

    /// Lists the first `most` names that begin with `prefix`, in order. A prefix ends in a name, not
    /// in a folder above it: `a/b` finds `a/b1`, not `a/b/c` alone.
    async fn names(&self, prefix: &str, most: usize) -> Result<Vec<String>, Fault>;

    /// Deletes a small file. Succeeds if there is none.
    async fn remove(&self, path: &str) -> Result<(), Fault>;

    /// Returns the local folder if the backend is one.
    fn folder(&self) -> Option<&std::path::Path> {
        None
    }
}

/// Creates the error for an object that is too short, too long or another one.
pub(crate) fn unusable(address: String, why: &str) -> Fault {
    Fault::Lasting(StoreError::unusable(address, why))
}
