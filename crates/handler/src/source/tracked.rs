//! Source that counts the bytes that its readers load.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Extent, FileEntry, Source, Stream};
use crate::buffer::Buffer;
use crate::error::Result;

/// Number of bytes of weights that loads have begun to read, and that they have read. Cheap to clone.
///
/// ```
/// use nsbridge_handler::Model;
/// use nsbridge_handler::source::LoadProgress;
///
/// let progress = LoadProgress::default();
/// let model = Model::in_dir("models/tale-7m").tracked(&progress);
/// // A handler that loads `model` now makes both numbers grow.
/// assert_eq!((progress.loaded(), progress.total()), (0, 0));
/// # drop(model);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LoadProgress(Arc<Bytes>);

#[derive(Debug, Default)]
struct Bytes {
    taken: AtomicU64,
    arrived: AtomicU64,
    total: AtomicU64,
}

impl LoadProgress {
    /// Returns the number of bytes that the readers have, or that have arrived for them.
    pub fn loaded(&self) -> u64 {
        let taken = self.0.taken.load(Ordering::Relaxed);
        taken.max(self.0.arrived.load(Ordering::Relaxed)).min(self.total())
    }

    /// Records that this number of bytes has arrived, for a storage that fetches ahead of the readers.
    pub fn arrived(&self, bytes: u64) {
        self.0.arrived.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Returns the number of bytes of all loads that have begun; 0 if none has.
    pub fn total(&self) -> u64 {
        self.0.total.load(Ordering::Relaxed)
    }
}

/// Source whose streams report to a [`LoadProgress`].
#[derive(Debug)]
pub(crate) struct Tracked {
    source: Arc<dyn Source>,
    progress: LoadProgress,
}

impl Tracked {
    pub(crate) fn new(source: Arc<dyn Source>, progress: LoadProgress) -> Self {
        Self { source, progress }
    }
}

#[derive(Debug)]
struct TrackedStream {
    stream: Box<dyn Stream>,
    progress: LoadProgress,
}

impl Source for Tracked {
    fn place(&self) -> String {
        self.source.place()
    }

    fn revision(&self) -> Option<&str> {
        self.source.revision()
    }

    fn files(&self) -> &[FileEntry] {
        self.source.files()
    }

    fn digest(&self, file: usize) -> Result<[u8; 32]> {
        self.source.digest(file)
    }

    fn read(&self, wanted: &[(usize, Range<u64>)]) -> Result<Vec<Vec<u8>>> {
        self.source.read(wanted)
    }

    fn stream(&self, extents: Vec<Extent>) -> Result<Box<dyn Stream>> {
        let sizes =
            extents.iter().map(|extent| extent.range.end.saturating_sub(extent.range.start));
        let total = sizes.sum();
        let stream = self.source.stream(extents)?;
        self.progress.0.total.fetch_add(total, Ordering::Relaxed);
        Ok(Box::new(TrackedStream { stream, progress: self.progress.clone() }))
    }

    fn dir(&self) -> Result<PathBuf> {
        self.source.dir()
    }
}

impl Stream for TrackedStream {
    fn take(&self, extent: usize) -> Result<Buffer> {
        let buffer = self.stream.take(extent)?;
        self.progress.0.taken.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        Ok(buffer)
    }
}
