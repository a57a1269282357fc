//! Verification of all bytes of a model against its manifest.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _};

use crate::chunk_writer::{ChunkWriter, Destination};
use crate::contents::Contents;
use crate::error::StoreError;
use crate::fetch::Chunk;

const CONCURRENT_CHUNKS: usize = 64;

/// Reads all chunks, keeps none, and returns the damage, chunk by chunk. `progress` receives the
/// size of each chunk.
///
/// # Errors
///
/// Returns an error if the bytes cannot be fetched, which says nothing about whether they are
/// damaged.
pub(crate) async fn verify(
    contents: &Arc<Contents>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<StoreError>, StoreError> {
    let files = 0..contents.files().len();
    let chunks: Vec<(usize, Chunk)> =
        files.flat_map(|file| contents.chunks_of(file).map(move |chunk| (file, chunk))).collect();
    let read = |(file, chunk): (usize, Chunk)| async move {
        let gate = contents.fetcher().gate.clone();
        let _permit = gate.acquire_owned().await.map_err(|_| StoreError::GivenUp)?;
        let len = chunk.range.end - chunk.range.start;
        let writer =
            ChunkWriter::new(vec![Destination::Skip(len)], contents.hasher(file, chunk.number));
        contents.fetch(file, &chunk, writer).await?;
        progress(len);
        Ok::<(), StoreError>(())
    };
    let mut reads = stream::iter(chunks).map(read).buffer_unordered(CONCURRENT_CHUNKS);
    let mut wrong = Vec::new();
    while let Some(read) = reads.next().await {
        match read {
            Ok(()) => {}
            Err(damage @ (StoreError::Corrupt { .. } | StoreError::Changed { .. })) => {
                wrong.push(damage);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(wrong)
}
