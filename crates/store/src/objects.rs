//! What holds a model's files: a bucket's prefix, or a folder.

mod folder;
#[cfg(feature = "s3")]
pub(crate) mod s3;

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub(crate) use folder::Folder;

use crate::error::{Fault, StoreError};
use crate::pace::Pace;
use crate::sink::Sink;

/// A file as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Its path below the prefix.
    pub(crate) path: String,
    pub(crate) size: u64,
    /// What tells this content from an older or newer one.
    pub(crate) etag: Option<String>,
}

/// How a reading is held to its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    /// Without a byte for so long it is given up.
    pub(crate) stall: Duration,
    /// What it may take a second.
    pub(crate) pace: &'a Pace,
}

/// A place with files in it.
#[async_trait]
pub(crate) trait Objects: Debug + Send + Sync {
    /// A file's address, for people.
    fn address(&self, path: &str) -> String;

    /// All files below the prefix.
    async fn list(&self) -> Result<Vec<Object>, Fault>;

    /// A small file whole; `None` if it is not there.
    async fn get(&self, path: &str, most: u64) -> Result<Option<Bytes>, Fault>;

    /// Reads a range of an object into a sink that has that much room left. On an error the sink
    /// tells how far it got. The content must be the one with the object's etag, if it has one.
    async fn read(
        &self,
        object: &Object,
        range: Range<u64>,
        sink: Sink,
        how: Reading<'_>,
    ) -> (Sink, Result<(), Fault>);

    /// Writes a small file; `only_new` refuses to replace one, and gives `false`.
    async fn put(&self, path: &str, content: Vec<u8>, only_new: bool) -> Result<bool, Fault>;

    /// The folder on this machine, if it is one.
    fn folder(&self) -> Option<&std::path::Path> {
        None
    }
}

/// The bytes are not those of this object: it is shorter, longer or another one.
pub(crate) fn unusable(address: String, why: &str) -> Fault {
    Fault::Lasting(StoreError::unusable(address, why))
}
