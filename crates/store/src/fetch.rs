//! Fetch of one chunk, from the cache or over the network, with retries until it is intact.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nsbridge_base::random::random;
use nsbridge_base::{Backoff, chain};
use nsbridge_handler::Buffer;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::cache::Cache;
use crate::chunk_writer::{ChunkWriter, Destination};
use crate::digest::{ChunkHasher, Digest};
use crate::error::{Failure, Fault, StoreError};
use crate::objects::{Object, Objects, Reading};
use crate::rate_limit::RateLimit;
use crate::stats::Counts;

/// Number of damaged reads of a chunk after which the stored object is taken to be damaged.
const WRONG: u32 = 3;

/// Minimum number of bytes with which a read counts as progress: 64 KiB. Without it, one byte a
/// minute would extend the patience without end.
const PROGRESS: u64 = 64 << 10;

/// Back-off between two tries of a read or of a request.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// State shared by all reads of a store.
#[derive(Debug)]
pub(crate) struct Fetcher {
    /// Limits the number of chunks that are fetched at once.
    pub(crate) gate: Arc<Semaphore>,
    pub(crate) rate_limit: RateLimit,
    /// Time without a byte after which a read is retried.
    pub(crate) stall: Duration,
    /// Time without a byte, over all tries, after which the load fails.
    pub(crate) patience: Duration,
    pub(crate) cache: Option<Cache>,
    pub(crate) counts: Arc<Counts>,
}

/// Chunk, or the needed range of a chunk that has no digest.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) object: Object,
    pub(crate) number: u64,
    pub(crate) range: Range<u64>,
    pub(crate) digest: Option<Digest>,
}

impl Fetcher {
    /// Fills a writer with a chunk. The writer must hash if the chunk has a digest.
    pub(crate) async fn fetch(
        &self,
        objects: &dyn Objects,
        chunk: &Chunk,
        mut writer: ChunkWriter,
    ) -> Result<ChunkWriter, StoreError> {
        // A folder is as close as the cache, so its chunks are not cached.
        let cache = self.cache.as_ref().filter(|_| objects.folder().is_none());
        if let (Some(cache), Some(digest)) = (cache, &chunk.digest) {
            let address =
                || format!("chunk {} of {}", chunk.number, objects.address(&chunk.object.path));
            let found;
            (writer, found) = cache.read(digest, writer, address).await;
            if found {
                self.counts.from_cache.add(writer.received());
                return Ok(writer);
            }
            if cache.has_room() {
                writer.keep();
            }
        }
        writer = self.over_the_network(objects, chunk, writer).await?;
        if let (Some(cache), Some(digest), Some(frames)) =
            (cache, &chunk.digest, writer.take_kept())
        {
            cache.write_behind(*digest, frames);
        }
        Ok(writer)
    }

    async fn over_the_network(
        &self,
        objects: &dyn Objects,
        chunk: &Chunk,
        mut writer: ChunkWriter,
    ) -> Result<ChunkWriter, StoreError> {
        let address = || objects.address(&chunk.object.path);
        let (mut wrong, mut pauses) = (0, BACKOFF.pauses());
        let mut moved = Instant::now();
        loop {
            let before = writer.received();
            let rest = chunk.range.start + before..chunk.range.end;
            let arrived = &self.counts.from_store;
            let how = Reading { stall: self.stall, rate_limit: &self.rate_limit, arrived };
            let done;
            (writer, done) = objects.read(&chunk.object, rest, writer, how).await;
            let failure = match done {
                Ok(()) if writer.digest() == chunk.digest => return Ok(writer),
                Ok(()) => {
                    wrong += 1;
                    if wrong == WRONG {
                        let (object, chunk) = (address(), chunk.number);
                        return Err(StoreError::Corrupt { object, chunk, tries: wrong });
                    }
                    self.counts.wrong.add(1);
                    let (object, number) = (address(), chunk.number);
                    tracing::warn!(
                        object,
                        chunk = number,
                        "a chunk came damaged, reading it again"
                    );
                    writer.rewind();
                    moved = Instant::now();
                    "the chunk came damaged".into()
                }
                Err(Fault::Lasting(error)) => return Err(error),
                Err(Fault::Passing(failure)) => failure,
            };
            if writer.received() >= before + PROGRESS {
                moved = Instant::now();
                pauses.reset();
            }
            let waited = moved.elapsed();
            if waited >= self.patience {
                return Err(StoreError::unreachable(address(), waited.as_secs(), failure));
            }
            self.counts.retries.add(1);
            let why = chain(&failure);
            tracing::debug!(object = address(), chunk = chunk.number, why, "reading on");
            // The permit is held during the back-off, so an overloaded store receives fewer
            // concurrent requests.
            sleep(pauses.next(random())).await;
        }
    }

    /// Retries a small request until it is answered or the patience runs out.
    pub(crate) async fn patiently<T, F>(
        &self,
        address: &str,
        mut request: impl FnMut() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let (started, mut pauses) = (Instant::now(), BACKOFF.pauses());
        loop {
            let failure = match request().await {
                Ok(answer) => return Ok(answer),
                Err(Fault::Lasting(error)) => return Err(error),
                Err(Fault::Passing(failure)) => failure,
            };
            let waited = started.elapsed();
            if waited >= self.patience {
                let seconds = waited.as_secs();
                return Err(StoreError::unreachable(address.to_owned(), seconds, failure));
            }
            self.counts.retries.add(1);
            tracing::debug!(object = address, why = chain(&failure), "asking again");
            sleep(pauses.next(random())).await;
        }
    }

    /// Fetches a chunk into a buffer of its own. `hasher` is the chunk's hasher if it has a digest.
    pub(crate) async fn bytes(
        &self,
        objects: &dyn Objects,
        chunk: &Chunk,
        hasher: Option<ChunkHasher>,
    ) -> Result<Bytes, StoreError> {
        let out_of = |error| {
            let address = objects.address(&chunk.object.path);
            StoreError::unusable(address, Failure::of_buffer(error))
        };
        let len = usize::try_from(chunk.range.end - chunk.range.start).unwrap_or(usize::MAX);
        let (filling, segments) = Buffer::filled_by(len, 1, &[]).map_err(out_of)?;
        let writer =
            ChunkWriter::new(segments.into_iter().map(Destination::Into).collect(), hasher);
        let _permit = self.gate.acquire().await.map_err(|_| StoreError::GivenUp)?;
        drop(self.fetch(objects, chunk, writer).await?);
        let buffer = filling.finish().map_err(|_| StoreError::GivenUp)?;
        Ok(Bytes::from(buffer.into_vec::<u8>().map_err(|_| StoreError::GivenUp)?))
    }
}
