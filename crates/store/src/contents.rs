//! Files of a model, pinned to one version of each object.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use parking_lot::Mutex;

use crate::chunk_writer::ChunkWriter;
use crate::digest::{ChunkHasher, Digest};
use crate::error::StoreError;
use crate::fetch::{Chunk, Fetcher};
use crate::objects::{Object, Objects};

/// Number of ranges that are read at once before a load. Each takes the memory of a chunk.
const READ_AT_ONCE: usize = 16;

/// Files of a model and the means to fetch their bytes.
#[derive(Debug)]
pub(crate) struct Contents {
    objects: Arc<dyn Objects>,
    files: Vec<StoredFile>,
    chunk_bytes: u64,
    fetcher: Arc<Fetcher>,
    /// Chunks that were read for a header, kept until a load takes them. So each byte is fetched
    /// once.
    kept: Mutex<HashMap<(usize, u64), Bytes>>,
    /// Maximum number of bytes in `kept`.
    room: u64,
}

/// File, pinned to its version at the time the model was opened.
#[derive(Clone, Debug)]
pub(crate) struct StoredFile {
    pub(crate) object: Object,
    /// Digests of the file if there is a manifest.
    pub(crate) digests: Option<Digests>,
}

/// Digests that verify a file.
#[derive(Clone, Debug)]
pub(crate) struct Digests {
    pub(crate) file: Digest,
    pub(crate) chunks: Vec<Digest>,
}

/// Division of a file into chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) size: u64,
    pub(crate) chunk: u64,
    /// True if chunks are verified and therefore read whole.
    pub(crate) whole: bool,
}

impl Contents {
    pub(crate) fn new(
        objects: Arc<dyn Objects>,
        files: Vec<StoredFile>,
        chunk_bytes: u64,
        fetcher: Arc<Fetcher>,
        room: u64,
    ) -> Self {
        Self { objects, files, chunk_bytes, fetcher, kept: Mutex::default(), room }
    }

    pub(crate) fn place(&self) -> String {
        self.objects.address("").trim_end_matches('/').to_owned()
    }

    pub(crate) fn folder(&self) -> Option<&Path> {
        self.objects.folder()
    }

    pub(crate) fn files(&self) -> &[StoredFile] {
        &self.files
    }

    pub(crate) fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    pub(crate) fn cut(&self, file: usize) -> Cut {
        let StoredFile { object, digests } = &self.files[file];
        Cut { size: object.size, chunk: self.chunk_bytes, whole: digests.is_some() }
    }

    /// Returns the chunks of a file with their numbers and ranges.
    pub(crate) fn chunks_of(&self, file: usize) -> impl Iterator<Item = Chunk> + '_ {
        let Cut { size, chunk, .. } = self.cut(file);
        (0..size.div_ceil(chunk)).map(move |number| {
            self.chunk(file, number, number * chunk..size.min((number + 1) * chunk))
        })
    }

    pub(crate) fn chunk(&self, file: usize, number: u64, range: Range<u64>) -> Chunk {
        let StoredFile { object, digests } = &self.files[file];
        let digest = digests.as_ref().map(|digests| digests.chunks[number as usize]);
        Chunk { object: object.clone(), number, range, digest }
    }

    pub(crate) fn hasher(&self, file: usize, number: u64) -> Option<ChunkHasher> {
        let digests = self.files[file].digests.as_ref()?;
        Some(ChunkHasher::new(number * self.chunk_bytes, digests.chunks.len() == 1))
    }

    /// Fills a writer with a chunk, from the kept chunks if it is there.
    pub(crate) async fn fetch(
        &self,
        file: usize,
        chunk: &Chunk,
        mut writer: ChunkWriter,
    ) -> Result<ChunkWriter, StoreError> {
        if let Some(bytes) = self.kept().remove(&(file, chunk.number)) {
            // It was verified when it was fetched.
            let start = (chunk.range.start - chunk.number * self.chunk_bytes) as usize;
            let len = (chunk.range.end - chunk.range.start) as usize;
            if writer.fill(&mut &bytes[start..start + len]).is_ok() {
                return Ok(writer);
            }
            writer.rewind();
        }
        self.fetcher.fetch(&*self.objects, chunk, writer).await
    }

    /// Fetches a chunk and returns its verified bytes.
    pub(crate) async fn bytes(&self, file: usize, chunk: &Chunk) -> Result<Bytes, StoreError> {
        self.fetcher.bytes(&*self.objects, chunk, self.hasher(file, chunk.number)).await
    }

    /// Reads ranges of files. Their chunks are kept for a load that may follow.
    pub(crate) async fn read(
        &self,
        wanted: &[(usize, Range<u64>)],
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        for (file, range) in wanted {
            let object = &self.files[*file].object;
            if range.start > range.end || range.end > object.size {
                let why = format!("it has {} bytes, not those of {range:?}", object.size);
                return Err(StoreError::unusable(self.objects.address(&object.path), why));
            }
        }
        // The number is limited because a checkpoint may have hundreds of files.
        let reads: Vec<_> =
            wanted.iter().map(|(file, range)| self.stretch(*file, range.clone())).collect();
        stream::iter(reads).buffered(READ_AT_ONCE).try_collect().await
    }

    async fn stretch(&self, file: usize, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        let numbers = range.start / self.chunk_bytes..range.end.div_ceil(self.chunk_bytes);
        for number in numbers.filter(|_| !range.is_empty()) {
            let first = number * self.chunk_bytes;
            let last = self.files[file].object.size.min(first + self.chunk_bytes);
            let chunk = self.keep(file, number, first..last).await?;
            let start = range.start.max(first) - first;
            let end = range.end.min(last) - first;
            bytes.extend_from_slice(&chunk[start as usize..end as usize]);
        }
        Ok(bytes)
    }

    async fn keep(&self, file: usize, number: u64, range: Range<u64>) -> Result<Bytes, StoreError> {
        if let Some(bytes) = self.kept().get(&(file, number)) {
            return Ok(bytes.clone());
        }
        let bytes = self.bytes(file, &self.chunk(file, number, range)).await?;
        let mut kept = self.kept();
        let held: u64 = kept.values().map(|bytes| bytes.len() as u64).sum();
        if held + bytes.len() as u64 <= self.room {
            kept.insert((file, number), bytes.clone());
        }
        Ok(bytes)
    }

    fn kept(&self) -> parking_lot::MutexGuard<'_, HashMap<(usize, u64), Bytes>> {
        self.kept.lock()
    }
}
