//! Cache of chunks on the local disk, keyed by digest.
//!
//! Each chunk is a file of its own. It is written under a temporary name, renamed into place, and
//! hashed whenever it is read. So neither locks nor flushes are needed: a writer that dies leaves a
//! file that no reader opens, a torn or damaged file fails its hash and is removed, and two writers
//! of one chunk write the same bytes. A lost race costs a download, never a wrong weight.

use std::fs::{self, File};
use std::io::{self, IoSlice, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use nsbridge_base::random::random;
use tokio::sync::Semaphore;

use crate::chunk_writer::ChunkWriter;
use crate::digest::Digest;
use crate::error::StoreError;
use crate::manifest::hex;
use crate::stats::Counts;

/// Maximum number of chunks that wait to be written, which bounds their memory. Further chunks are
/// not cached.
const WAITING: usize = 8;

/// Number of consecutive failed writes after which the cache stops writing, for instance to a full
/// disk.
const MOST_FAILURES: u32 = 8;

/// Age at which the temporary file of a dead writer is removed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Number of bytes written between two checks of the budget.
const BETWEEN_LOOKS: u64 = 256 << 20;

/// Folder of chunks, shared with other processes.
#[derive(Clone, Debug)]
pub(crate) struct Cache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    chunks: PathBuf,
    new: PathBuf,
    budget: u64,
    writers: Arc<Semaphore>,
    counts: Arc<Counts>,
    /// Number of consecutive failed writes.
    failures: AtomicU32,
}

impl Cache {
    /// Opens or creates a cache that keeps at most `budget` bytes.
    pub(crate) fn open(dir: &Path, budget: u64, counts: Arc<Counts>) -> Result<Self, StoreError> {
        let (chunks, new) = (dir.join("chunks"), dir.join("new"));
        for folder in [&chunks, &new] {
            let what = || format!("make the cache's folder {}", folder.display());
            fs::create_dir_all(folder).map_err(StoreError::system(what()))?;
        }
        let writers = Arc::new(Semaphore::new(WAITING));
        let cache = Self(Arc::new(Inner {
            chunks,
            new,
            budget,
            writers,
            counts,
            failures: AtomicU32::new(0),
        }));
        cache.0.remove_abandoned();
        cache.0.keep_to_budget();
        Ok(cache)
    }

    /// Fills a writer with a chunk and returns true if the cache holds it undamaged.
    pub(crate) async fn read(
        &self,
        digest: &Digest,
        writer: ChunkWriter,
        address: impl FnOnce() -> String,
    ) -> (ChunkWriter, bool) {
        let (inner, wanted, address) = (self.0.clone(), *digest, address());
        let read = move || {
            let mut writer = writer;
            let found = inner.read(&wanted, &mut writer, &address);
            if !found {
                writer.rewind();
            }
            (writer, found)
        };
        // A blocking task is dropped only while its runtime shuts down.
        tokio::task::spawn_blocking(read)
            .await
            .unwrap_or_else(|_| (ChunkWriter::new(Vec::new(), None), false))
    }

    /// Returns true if a chunk that is fetched now can be queued for writing.
    pub(crate) fn has_room(&self) -> bool {
        let given_up = self.0.failures.load(Ordering::Relaxed) >= MOST_FAILURES;
        self.0.writers.available_permits() > 0 && !given_up
    }

    /// Queues a verified chunk for writing. The chunk is dropped if the queue is full.
    pub(crate) fn write_behind(&self, digest: Digest, frames: Vec<Bytes>) {
        let Ok(permit) = self.0.writers.clone().try_acquire_owned() else { return };
        let inner = self.0.clone();
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            match inner.write(&digest, &frames) {
                Ok(()) => inner.failures.store(0, Ordering::Relaxed),
                Err(error) if inner.failures.fetch_add(1, Ordering::Relaxed) == 0 => {
                    let place = inner.chunks.display();
                    tracing::warn!(%error, "a chunk could not be cached in {place}: making room");
                    inner.keep_to_budget();
                }
                Err(_) => {}
            }
        });
    }

    /// Waits until all queued chunks are written.
    pub(crate) async fn flushed(&self) {
        let _ = self.0.writers.acquire_many(WAITING as u32).await;
    }
}

impl Inner {
    fn path(&self, digest: &Digest) -> PathBuf {
        let name = hex(digest);
        self.chunks.join(&name[..2]).join(name)
    }

    fn read(&self, digest: &Digest, writer: &mut ChunkWriter, address: &str) -> bool {
        let path = self.path(digest);
        let Ok(mut file) = File::open(&path) else { return false };
        let whole = writer.fill(&mut file).is_ok() && writer.is_full();
        if whole && writer.digest().as_ref() == Some(digest) {
            // The modification time is the time of the last use. A process that may not set it sees
            // its chunks evicted sooner.
            let _ = file.set_modified(SystemTime::now());
            return true;
        }
        self.counts.wrong_in_cache.add(1);
        tracing::warn!("{address} is damaged in the cache ({}): fetching it again", path.display());
        let _ = fs::remove_file(&path);
        false
    }

    fn write(&self, digest: &Digest, frames: &[Bytes]) -> io::Result<()> {
        let path = self.path(digest);
        if path.exists() {
            return Ok(());
        }
        let new = self.new.join(format!("{}-{:016x}", std::process::id(), random()));
        let written = write_all(&new, frames).and_then(|bytes| {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::rename(&new, &path)?;
            Ok(bytes)
        });
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        let bytes = written?;
        let before = self.counts.to_cache.add(bytes);
        if before / BETWEEN_LOOKS != (before + bytes) / BETWEEN_LOOKS {
            self.keep_to_budget();
        }
        Ok(())
    }

    /// Evicts the least recently used chunks until the rest is within the budget.
    ///
    /// Another process may evict at the same time, or read a chunk that is removed: a file that is
    /// open stays readable.
    fn keep_to_budget(&self) {
        let mut chunks = files(&self.chunks);
        let mut size: u64 = chunks.iter().map(|chunk| chunk.size).sum();
        chunks.sort_by_key(|chunk| chunk.used);
        for chunk in chunks {
            if size <= self.budget {
                return;
            }
            match fs::remove_file(&chunk.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                // It was removed now, or by another process with the same budget.
                _ => size -= chunk.size,
            }
        }
    }

    fn remove_abandoned(&self) {
        let Some(long_ago) = SystemTime::now().checked_sub(ABANDONED) else { return };
        for file in files(&self.new).into_iter().filter(|file| file.used < long_ago) {
            let _ = fs::remove_file(&file.path);
        }
    }
}

struct Kept {
    path: PathBuf,
    size: u64,
    used: SystemTime,
}

fn files(dir: &Path) -> Vec<Kept> {
    let mut found = Vec::new();
    for entry in dir.read_dir().into_iter().flatten().flatten() {
        let Ok(what) = entry.metadata() else { continue };
        if what.is_dir() {
            found.extend(files(&entry.path()));
        } else if let Ok(used) = what.modified() {
            found.push(Kept { path: entry.path(), size: what.len(), used });
        }
    }
    found
}

fn write_all(path: &Path, frames: &[Bytes]) -> io::Result<u64> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    let mut slices: Vec<_> = frames.iter().map(|frame| IoSlice::new(frame)).collect();
    let mut rest = &mut slices[..];
    let mut total = 0;
    while !rest.is_empty() {
        let written = file.write_vectored(rest)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        total += written as u64;
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(total)
}

#[cfg(test)]
mod tests;
