//! A model's files into a folder.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use nsbridge_handler::Buffer;

use super::error::StoreError;
use super::fetch::Chunk;
use super::model::Contents;
use super::sink::{Piece, Sink};

/// Chunks of one file that are asked for at once; the store's gate bounds them all together.
const AT_ONCE: usize = 64;

/// Brings all files into `dir`, keeping what is there and right. `progress` is told of each chunk's
/// bytes, whether they had to be fetched or not.
///
/// A file gets its name when it is whole; until then it is `NAME.part`, whose chunks are read again
/// when the next one goes on. Two that do this at once write the same bytes.
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
    let size = contents.files()[index].object.size;
    let verified = contents.files()[index].digests.is_some();
    let part = PathBuf::from(format!("{}.part", path.display()));
    // What cannot be verified cannot be kept.
    let there = if verified && path.exists() { path } else { &part };
    let chunks: Vec<Chunk> = contents.chunks_of(index).collect();
    let mut missing = Vec::new();
    for chunk in chunks {
        if verified && is_right(contents, index, &chunk, there).await {
            progress(chunk.range.end - chunk.range.start);
        } else {
            missing.push(chunk);
        }
    }
    let whole = there.metadata().is_ok_and(|found| found.len() == size);
    if missing.is_empty() && whole && there == path {
        return Ok(());
    }
    let file = open(there, size).await?;
    let bring = |chunk: Chunk| {
        let file = file.clone();
        async move {
            let bytes = contents.bytes(index, &chunk).await?;
            let (at, count) = (chunk.range.start, bytes.len() as u64);
            blocking(there, move || file.write_all_at(&bytes, at)).await?;
            progress(count);
            Ok::<(), StoreError>(())
        }
    };
    stream::iter(missing).map(bring).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    drop(file);
    if there == path {
        return Ok(());
    }
    match fs::rename(there, path) {
        // Somebody else was as far, and quicker.
        Err(_) if path.metadata().is_ok_and(|found| found.len() == size) => Ok(()),
        renamed => renamed.map_err(StoreError::system(format!("name {}", path.display()))),
    }
}

/// Whether a chunk lies in the file as it should.
async fn is_right(contents: &Arc<Contents>, index: usize, chunk: &Chunk, path: &Path) -> bool {
    let Some(hasher) = contents.hasher(index, chunk.number) else { return false };
    let (path, range, digest) = (path.to_owned(), chunk.range.clone(), chunk.digest);
    let read = move || {
        let mut file = File::open(path).ok()?;
        file.seek(SeekFrom::Start(range.start)).ok()?;
        let (_, segments) = Buffer::filled_by((range.end - range.start) as usize, 1, &[]).ok()?;
        let mut sink = Sink::new(segments.into_iter().map(Piece::Into).collect(), Some(hasher));
        sink.fill(&mut file).ok()?;
        (sink.digest() == digest).then_some(())
    };
    tokio::task::spawn_blocking(read).await.is_ok_and(|right| right.is_some())
}

/// Opens a file for chunks in any order, at its full length.
async fn open(path: &Path, size: u64) -> Result<Arc<File>, StoreError> {
    let target = path.to_owned();
    blocking(path, move || {
        target.parent().map_or(Ok(()), fs::create_dir_all)?;
        let options = File::options().write(true).create(true).truncate(false).to_owned();
        let file = options.open(&target)?;
        file.set_len(size)?;
        Ok(Arc::new(file))
    })
    .await
}

async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|_| StoreError::GivenUp)?;
    done.map_err(StoreError::system(format!("write {}", path.display())))
}
