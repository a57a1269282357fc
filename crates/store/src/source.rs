//! Model of the store, as a [`Source`] for handlers.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use nsbridge_handler::source::{Extent, FileEntry, Source, Stream, check_range, digest_of};
use nsbridge_handler::{Error, Result};
use tokio::runtime::Handle;

use crate::contents::Contents;
use crate::error::StoreError;
use crate::load::{Load, Plan};
use crate::pull;

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
        // Files of a folder that cannot be verified stay as they are.
        let is_plain = contents.files().iter().all(|file| file.digests.is_none());
        if is_plain && contents.folder().is_some() {
            return Ok(tree);
        }
        self.wait(async move {
            pull::bring(&contents, &tree, &|_| {}).await?;
            Ok(tree)
        })
    }
}
