//! Hand-written models for tests.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nsbridge_handler::source::{Extent, FileEntry, Source, Stream, check_range};
use nsbridge_handler::{Buffer, Error, Model, Result};

/// Model in memory that counts the reads.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    files: Vec<FileEntry>,
    contents: Vec<Vec<u8>>,
    pub(crate) reads: Arc<Reads>,
}

/// Counters of the reads from a [`Memory`].
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// Number of streams started.
    pub(crate) streams: AtomicUsize,
    /// Number of bytes loaded.
    pub(crate) bytes: AtomicUsize,
    /// If set, the next extent fails to load.
    pub(crate) fails: AtomicBool,
}

/// Extent and its bytes.
type Wanted = (Extent, Vec<u8>);

#[derive(Debug)]
struct Brought {
    extents: Mutex<Vec<Option<Wanted>>>,
    reads: Arc<Reads>,
}

impl Memory {
    pub(crate) fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let mut files = files.to_vec();
        files.sort();
        let entry = |(path, bytes): &(&str, Vec<u8>)| FileEntry::new(*path, bytes.len() as u64);
        let entries = files.iter().map(entry).collect();
        let contents = files.into_iter().map(|(_, bytes)| bytes).collect();
        Self { files: entries, contents, ..Self::default() }
    }

    pub(crate) fn model(self) -> Model {
        Model::from_source(Arc::new(self))
    }
}

impl Source for Memory {
    fn place(&self) -> String {
        "memory".to_owned()
    }

    fn revision(&self) -> Option<&str> {
        None
    }

    fn files(&self) -> &[FileEntry] {
        &self.files
    }

    fn digest(&self, file: usize) -> Result<[u8; 32]> {
        Ok(blake3::hash(&self.contents[file]).into())
    }

    fn read(&self, wanted: &[(usize, Range<u64>)]) -> Result<Vec<Vec<u8>>> {
        let read = |(file, range): &(usize, Range<u64>)| {
            check_range(&self.files[*file], range)?;
            Ok(self.contents[*file][range.start as usize..range.end as usize].to_vec())
        };
        wanted.iter().map(read).collect()
    }

    fn stream(&self, extents: Vec<Extent>) -> Result<Box<dyn Stream>> {
        self.reads.streams.fetch_add(1, Ordering::Relaxed);
        let wanted: Vec<_> = extents.iter().map(|e| (e.file, e.range.clone())).collect();
        let brought = extents.into_iter().zip(self.read(&wanted)?).map(Some).collect();
        Ok(Box::new(Brought { extents: Mutex::new(brought), reads: self.reads.clone() }))
    }

    fn dir(&self) -> Result<PathBuf> {
        Err(Error::fatal("a model in memory has no folder"))
    }
}

impl Stream for Brought {
    fn take(&self, extent: usize) -> Result<Buffer> {
        let (extent, bytes) = self.extents.lock().unwrap()[extent].take().expect("taken twice");
        if self.reads.fails.swap(false, Ordering::Relaxed) {
            return Err(Error::fatal("the line is cut"));
        }
        self.reads.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        let (filling, mut segments) = Buffer::filled_by(bytes.len(), extent.align, &[])?;
        segments[0].copy_from_slice(&bytes);
        drop(segments);
        Ok(filling.finish().expect("no segment is held"))
    }
}

/// Builds a safetensors file: a header and `data` bytes, where each byte is its own offset.
pub(crate) fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    let data: Vec<u8> = (0..data).map(|i| i as u8).collect();
    [&length, header.as_bytes(), &data].concat()
}

/// Builds an entry of a safetensors header.
pub(crate) fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}
