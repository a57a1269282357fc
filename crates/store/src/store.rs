//! The store: finds models, and brings, verifies and pushes them.

mod open;
#[cfg(feature = "s3")]
mod push;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nsbridge_handler::Model;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

#[cfg(feature = "s3")]
pub use self::push::{Push, Pushed, Pushing};

use crate::cache::Cache;
use crate::config::StoreConfig;
use crate::contents::Contents;
use crate::counts::Counts;
use crate::error::StoreError;
use crate::fetch::Fetcher;
use crate::location::Location;
use crate::manifest::{MANIFEST, Manifest};
use crate::names::random;
use crate::objects::Objects as _;
use crate::pace::Pace;
use crate::{objects, pull, verify};

/// The most threads that fetching takes; sockets and digests are spread over them.
const MOST_THREADS: usize = 8;

/// Opens models, and brings their bytes while handlers wait for them.
///
/// It has threads of its own, so that a load cannot delay what the bridge does meanwhile. Dropped, it
/// ends all loads.
#[derive(Debug)]
pub struct Store {
    config: StoreConfig,
    fetcher: Arc<Fetcher>,
    counts: Arc<Counts>,
    /// Ended without waiting when the store is dropped, which may be on a runtime's own thread.
    runtime: Option<Runtime>,
    /// Where files are put for code that wants plain paths, and whether they go with the store.
    trees: PathBuf,
    trees_are_ours: bool,
    #[cfg(feature = "s3")]
    client: tokio::sync::OnceCell<aws_sdk_s3::Client>,
}

/// A model that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Where it is.
    pub location: Location,
    /// BLAKE3 of its manifest, if it is to be this and no other.
    pub manifest: Option<[u8; 32]>,
}

impl From<Location> for Wanted {
    fn from(location: Location) -> Self {
        Self { location, manifest: None }
    }
}

/// A model that was found.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The model, for a handler.
    pub model: Model,
    /// What it is made of; `None` where nothing says so, and nothing can be verified.
    pub manifest: Option<Arc<Manifest>>,
    /// The manifest as it stands in the store, whose BLAKE3 a configuration may pin.
    written: Option<bytes::Bytes>,
    contents: Arc<Contents>,
}

impl Store {
    /// Opens a store.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] for a number that cannot be, [`StoreError::System`] if the cache's
    /// folder cannot be made or threads cannot be started.
    pub fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        config.check().map_err(StoreError::Refused)?;
        let counts = Arc::new(Counts::default());
        let cache = match &config.cache {
            Some(dir) => Some(Cache::open(dir, config.cache_bytes(), counts.clone())?),
            None => None,
        };
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let runtime = Builder::new_multi_thread()
            .thread_name("nsbridge-store")
            .worker_threads(threads.clamp(2, MOST_THREADS))
            .enable_all()
            .build()
            .map_err(StoreError::system("start the store's threads"))?;
        let trees_are_ours = config.cache.is_none();
        let trees = match &config.cache {
            Some(dir) => dir.join("trees"),
            None => std::env::temp_dir().join(format!("nsbridge-{:016x}", random())),
        };
        let fetcher = Fetcher {
            gate: Arc::new(Semaphore::new(config.in_flight.max(1))),
            pace: Pace::new(config.bytes_per_second()),
            stall: config.stall(),
            patience: config.patience(),
            cache,
            counts: counts.clone(),
        };
        Ok(Self {
            config: config.clone(),
            fetcher: Arc::new(fetcher),
            counts,
            runtime: Some(runtime),
            trees,
            trees_are_ours,
            #[cfg(feature = "s3")]
            client: tokio::sync::OnceCell::new(),
        })
    }

    /// The same, which speaks to AWS as this configuration says: other credentials than those that
    /// AWS's own tools would find, another region, another endpoint.
    ///
    /// # Errors
    ///
    /// It names no region.
    #[cfg(feature = "s3")]
    pub fn with_aws(mut self, config: &aws_types::SdkConfig) -> Result<Self, StoreError> {
        let client = objects::s3::client(config, self.config.path_style)?;
        self.client = tokio::sync::OnceCell::from(client);
        Ok(self)
    }

    /// What it has done so far.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Waits until what is to be cached is on the disk.
    pub async fn flushed(&self) {
        if let Some(cache) = &self.fetcher.cache {
            cache.flushed().await;
        }
    }

    /// Brings all of a model's files into a folder, its manifest last, keeping what is there and
    /// right.
    ///
    /// # Errors
    ///
    /// A file cannot be had, or the folder cannot be written.
    pub async fn pull(
        &self,
        opened: &Opened,
        dir: &Path,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<(), StoreError> {
        let (contents, dir) = (opened.contents.clone(), dir.to_owned());
        let written = opened.written.clone();
        self.run(async move {
            pull::bring(&contents, &dir, &progress).await?;
            let Some(written) = written else { return Ok(()) };
            // So that the folder can be verified and served like the bucket.
            let folder = objects::Folder::new(dir);
            let put = folder.put(MANIFEST, written.to_vec(), false);
            put.await.map(|_| ()).map_err(|fault| fault.lasting(MANIFEST))
        })
        .await
    }

    /// Holds all of a model's bytes against its manifest; gives what was wrong.
    ///
    /// # Errors
    ///
    /// There is no manifest, or the bytes cannot be had.
    pub async fn verify(
        &self,
        opened: &Opened,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<Vec<StoreError>, StoreError> {
        if opened.manifest.is_none() {
            let why = format!("it has no {MANIFEST} to be held against");
            return Err(StoreError::unusable(opened.model.place(), why));
        }
        let contents = opened.contents.clone();
        self.run(async move { verify::verify(&contents, &progress).await }).await
    }

    /// Runs on the store's own threads.
    async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let runtime = self.runtime.as_ref().ok_or(StoreError::GivenUp)?;
        runtime.spawn(work).await.unwrap_or(Err(StoreError::GivenUp))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        if self.trees_are_ours {
            let _ = std::fs::remove_dir_all(&self.trees);
        }
    }
}
