//! A model in the store, as a handler reads it.

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

/// A model in the store.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) contents: Arc<Contents>,
    pub(crate) entries: Vec<FileEntry>,
    pub(crate) revision: Option<String>,
    /// Where fetching goes on while a handler's threads wait.
    pub(crate) runtime: Handle,
    /// How far a load may run ahead.
    pub(crate) memory: u64,
    /// Where files are put for code that wants plain paths.
    pub(crate) tree: PathBuf,
}

impl Stored {
    /// Runs on the store's threads; the caller's waits.
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
        // Without a manifest, what the store calls the content stands for it: equal promises equal.
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
