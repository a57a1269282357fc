//! A model's files into a folder.

mod part;

use std::path::Path;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::contents::Contents;
use crate::error::StoreError;
use crate::fetch::Chunk;
use part::{Part, is_right};

/// Chunks of one file that are asked for at once; the store's gate bounds them all together.
const AT_ONCE: usize = 64;

/// Chunks that are read again at once.
const READ_AT_ONCE: usize = 8;

/// Brings all files into `dir`, keeping what is there and right. `progress` is told of each chunk's
/// bytes, whether they had to be fetched or not.
///
/// A file gets its name when it is whole and right; until then it is `NAME.part`, whose chunks are
/// read again when the next one goes on with it. What bears the name already is replaced, never
/// written to: it may be a link to something else.
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
    // What cannot be verified cannot be kept.
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
    stream::iter(chunks).map(bring).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    part.finish().await
}
