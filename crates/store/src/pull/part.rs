//! Partially downloaded file.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use nsbridge_base::random::random;
use rustix::fs::{FlockOperation, flock};

use crate::contents::Contents;
use crate::error::StoreError;
use crate::fetch::Chunk;

/// Open partial file: `NAME.part`, or a unique name while another process holds the lock of that
/// one.
///
/// All checks and writes go through one open file, so the file that is renamed is the file that was
/// checked. The lock only saves a download: on a file system whose locks do not work, two processes
/// write the same bytes to the same offsets.
pub(super) struct Part {
    file: Arc<File>,
    name: PathBuf,
    path: PathBuf,
}

impl Part {
    pub(super) async fn open(path: &Path, size: u64) -> Result<Self, StoreError> {
        let path = path.to_owned();
        blocking(&path.clone(), move || {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            let common = PathBuf::from(format!("{}.part", path.display()));
            let mut name = common;
            let mut file = create(&name)?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() || gone(&file, &name)
            {
                name = PathBuf::from(format!("{}.{:016x}.part", path.display(), random()));
                file = create(&name)?;
            }
            file.set_len(size)?;
            Ok(Self { file: Arc::new(file), name, path })
        })
        .await
    }

    /// Returns true if a chunk is there already or could be copied from an older file.
    pub(super) async fn has(
        &self,
        contents: &Arc<Contents>,
        index: usize,
        chunk: &Chunk,
        old: Option<Arc<File>>,
    ) -> Result<bool, StoreError> {
        if is_right(contents, index, chunk.clone(), self.file.clone()).await {
            return Ok(true);
        }
        let Some(old) = old else { return Ok(false) };
        if !is_right(contents, index, chunk.clone(), old.clone()).await {
            return Ok(false);
        }
        let (file, range) = (self.file.clone(), chunk.range.clone());
        blocking(&self.name, move || {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            old.read_exact_at(&mut bytes, range.start)?;
            file.write_all_at(&bytes, range.start)
        })
        .await?;
        // The older file may have been modified between the check and the copy.
        Ok(is_right(contents, index, chunk.clone(), self.file.clone()).await)
    }

    pub(super) async fn write(&self, bytes: Bytes, at: u64) -> Result<(), StoreError> {
        let file = self.file.clone();
        blocking(&self.name, move || file.write_all_at(&bytes, at)).await
    }

    /// Renames the file to its final name.
    pub(super) async fn finish(self) -> Result<(), StoreError> {
        let Self { file, name, path } = self;
        blocking(&path.clone(), move || {
            if gone(&file, &name) {
                // Another process completed and renamed the same file.
                return if gone(&file, &path) {
                    Err(io::ErrorKind::NotFound.into())
                } else {
                    Ok(())
                };
            }
            fs::rename(&name, &path)
        })
        .await
    }
}

/// Opens a path if it is a regular file and not a link.
pub(super) async fn regular(path: &Path) -> Option<Arc<File>> {
    let path = path.to_owned();
    let open = move || {
        let found = path.symlink_metadata().ok()?;
        let file = found.is_file().then(|| File::open(path))?;
        Some(Arc::new(file.ok()?))
    };
    tokio::task::spawn_blocking(open).await.ok()?
}

/// Returns true if the chunk in the file matches its digest.
pub(super) async fn is_right(
    contents: &Arc<Contents>,
    index: usize,
    chunk: Chunk,
    file: Arc<File>,
) -> bool {
    let Some(mut hasher) = contents.hasher(index, chunk.number) else { return false };
    let read = move || {
        let mut bytes = vec![0; (chunk.range.end - chunk.range.start) as usize];
        file.read_exact_at(&mut bytes, chunk.range.start).ok()?;
        hasher.update(&bytes);
        (Some(hasher.finish()) == chunk.digest).then_some(())
    };
    tokio::task::spawn_blocking(read).await.is_ok_and(|right| right.is_some())
}

fn create(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

/// Returns true if the name now refers to another file or to none.
fn gone(file: &File, name: &Path) -> bool {
    let same = |a: &fs::Metadata, b: &fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    !matches!((file.metadata(), name.symlink_metadata()), (Ok(a), Ok(b)) if same(&a, &b))
}

async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|_| StoreError::GivenUp)?;
    done.map_err(StoreError::system(format!("write {}", path.display())))
}
