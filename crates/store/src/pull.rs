//! Download of a model's files into a folder.

mod part;

use std::path::Path;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::contents::Contents;
use crate::error::StoreError;
use crate::fetch::Chunk;
use part::{Part, is_right};

/// Number of chunks of one file that are requested at once. The store's semaphore bounds the total.
const CONCURRENT_CHUNKS: usize = 64;

/// Number of chunks of an existing file that are verified at once.
const READ_AT_ONCE: usize = 8;

/// Downloads all files into `dir` and keeps files that are there and intact. `progress` receives
/// the size of each chunk, whether it was fetched or kept.
///
/// A file is named `NAME.part` until it is complete and verified. A later pull verifies the chunks
/// of such a file and continues it. An existing file of the final name is replaced and never
/// written to, since it may be a link to another file.
pub(crate) async fn bring(
    contents: &Arc<Contents>,
    dir: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), StoreError> {
    for (index, file) in contents.files().iter().enumerate() {
        let path = dir.join(&file.object.path);
        one(contents, index, &path, progress).await?;
    }
    Ok(())
}

async fn one(
    contents: &Arc<Contents>,
    index: usize,
    path: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), StoreError> {
    let stored = &contents.files()[index];
    let size = stored.object.size;
    let chunks: Vec<Chunk> = contents.chunks_of(index).collect();
    // Bytes that cannot be verified are not kept.
    let verified = stored.digests.is_some();
    let old = if verified { part::regular(path).await } else { None };
    if let Some(old) = &old {
        let check = |chunk: Chunk| is_right(contents, index, chunk, old.clone());
        let mut checks = stream::iter(chunks.clone()).map(check).buffer_unordered(READ_AT_ONCE);
        let mut right = old.metadata().is_ok_and(|found| found.len() == size);
        while let Some(one) = checks.next().await {
            right &= one;
        }
        if right {
            progress(size);
            return Ok(());
        }
    }
    let part = Part::open(path, size).await?;
    let bring = |chunk: Chunk| {
        let (part, old) = (&part, old.clone());
        async move {
            let len = chunk.range.end - chunk.range.start;
            if !(verified && part.has(contents, index, &chunk, old).await?) {
                let bytes = contents.bytes(index, &chunk).await?;
                part.write(bytes, chunk.range.start).await?;
            }
            progress(len);
            Ok::<(), StoreError>(())
        }
    };
    stream::iter(chunks).map(bring).buffer_unordered(CONCURRENT_CHUNKS).try_collect::<()>().await?;
    part.finish().await
}
