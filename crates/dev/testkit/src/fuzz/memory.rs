//! A model whose files are in memory.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use nsbridge_handler::source::{Extent, FileEntry, Source, Stream};
use nsbridge_handler::{Buffer, Error, Result};

#[derive(Clone, Debug)]
pub(super) struct InMemory {
    files: Vec<FileEntry>,
    contents: Arc<Vec<Vec<u8>>>,
}

#[derive(Debug)]
struct Reads {
    extents: Vec<Extent>,
    of: InMemory,
}

impl InMemory {
    /// Creates a model of files that are ascending by path.
    pub(super) fn new(files: &[(&str, &[u8])]) -> Self {
        let entry = |(path, bytes): &(&str, &[u8])| FileEntry::new(*path, bytes.len() as u64);
        let contents = files.iter().map(|(_, bytes)| bytes.to_vec()).collect();
        Self { files: files.iter().map(entry).collect(), contents: Arc::new(contents) }
    }

    fn bytes(&self, file: usize, range: &Range<u64>) -> &[u8] {
        &self.contents[file][range.start as usize..range.end as usize]
    }
}

/// Panics if a range outside a file is read.
impl Source for InMemory {
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
        Ok(wanted.iter().map(|(file, range)| self.bytes(*file, range).to_vec()).collect())
    }

    fn stream(&self, extents: Vec<Extent>) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Reads { extents, of: self.clone() }))
    }

    fn dir(&self) -> Result<PathBuf> {
        Err(Error::fatal("a model in memory has no folder"))
    }
}

impl Stream for Reads {
    fn take(&self, extent: usize) -> Result<Buffer> {
        let Extent { file, range, align, .. } = &self.extents[extent];
        let bytes = self.of.bytes(*file, range);
        let (filling, segments) = Buffer::filled_by(bytes.len(), *align, &[])?;
        for mut segment in segments {
            segment.copy_from_slice(bytes);
        }
        filling.finish().map_err(|_| Error::fatal("a segment is still held"))
    }
}
