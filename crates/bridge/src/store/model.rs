//! Model of the store, as a [`Source`] for handlers.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use nsbridge_handler::source::{Extent, FileEntry, Source, Stream, check_range, digest_of};
use nsbridge_handler::{Error, Result};
use tokio::runtime::Handle;

use super::digest::{ChunkHasher, Digest};
use super::error::StoreError;
use super::fetch::{Chunk, Fetcher};
use super::load::Load;
use super::load::plan::{Cut, Plan};
use super::objects::{Object, Objects};
use super::pull;
use super::sink::Sink;

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

    /// Fills a sink with a chunk, from the kept chunks if it is there.
    pub(crate) async fn fetch(
        &self,
        file: usize,
        chunk: &Chunk,
        mut sink: Sink,
    ) -> Result<Sink, StoreError> {
        if let Some(bytes) = self.kept().remove(&(file, chunk.number)) {
            // It was verified when it was fetched.
            let start = (chunk.range.start - chunk.number * self.chunk_bytes) as usize;
            let len = (chunk.range.end - chunk.range.start) as usize;
            if sink.fill(&mut &bytes[start..start + len]).is_ok() {
                return Ok(sink);
            }
            sink.rewind();
        }
        self.fetcher.fetch(&*self.objects, chunk, sink).await
    }

    /// Fetches a chunk and returns its verified bytes.
    pub(crate) async fn bytes(&self, file: usize, chunk: &Chunk) -> Result<Bytes, StoreError> {
        self.fetcher.bytes(&*self.objects, chunk, self.hasher(file, chunk.number)).await
    }

    /// Reads ranges of files. Their chunks are kept for a load that may follow.
    async fn read(&self, wanted: &[(usize, Range<u64>)]) -> Result<Vec<Vec<u8>>, StoreError> {
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

    fn kept(&self) -> std::sync::MutexGuard<'_, HashMap<(usize, u64), Bytes>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opened model of the store.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) contents: Arc<Contents>,
    pub(crate) entries: Vec<FileEntry>,
    pub(crate) revision: Option<String>,
    /// Runtime on which fetching continues while a handler's thread waits.
    pub(crate) runtime: Handle,
    /// Maximum number of bytes that a load may be ahead of its reader.
    pub(crate) memory: u64,
    /// Folder for code that needs plain paths.
    pub(crate) tree: PathBuf,
}

impl Stored {
    /// Runs a future on the store's runtime and blocks the calling thread until it ends.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T> {
        let (done, result) = mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            let _ = done.send(work.await);
        });
        result.recv().unwrap_or(Err(StoreError::GivenUp)).map_err(Error::fatal)
    }
}

impl Source for Stored {
    fn place(&self) -> String {
        self.contents.place()
    }

    fn revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }

    fn files(&self) -> &[FileEntry] {
        &self.entries
    }

    fn digest(&self, file: usize) -> Result<[u8; 32]> {
        let stored = &self.contents.files()[file];
        if let Some(digests) = &stored.digests {
            return Ok(digests.file);
        }
        if let Some(dir) = self.contents.folder() {
            return digest_of(&dir.join(&stored.object.path));
        }
        // Without a manifest the digest is that of size and ETag: equal ETags promise equal
        // content.
        let mut hasher = blake3::Hasher::new_derive_key("nsbridge 2026-11-21 object version");
        hasher.update(&stored.object.size.to_le_bytes());
        hasher.update(stored.object.etag.as_deref().unwrap_or_default().as_bytes());
        Ok(hasher.finalize().into())
    }

    fn read(&self, wanted: &[(usize, Range<u64>)]) -> Result<Vec<Vec<u8>>> {
        let (contents, wanted) = (self.contents.clone(), wanted.to_vec());
        self.wait(async move { contents.read(&wanted).await })
    }

    fn stream(&self, extents: Vec<Extent>) -> Result<Box<dyn Stream>> {
        for extent in &extents {
            check_range(&self.entries[extent.file], &extent.range)?;
        }
        let plan = Plan::new(&extents, |file| self.contents.cut(file));
        let plan = plan.map_err(|why| Error::fatal(format!("in {}, {why}", self.place())))?;
        Ok(Box::new(Load::start(&self.runtime, self.contents.clone(), plan, self.memory)))
    }

    fn dir(&self) -> Result<PathBuf> {
        let (contents, tree) = (self.contents.clone(), self.tree.clone());
        self.wait(async move {
            pull::bring(&contents, &tree, &|_| {}).await?;
            Ok(tree)
        })
    }
}
