//! Model store: opens, fetches, verifies and pushes models.

#[cfg(feature = "s3")]
mod push;
mod resolve;

use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(feature = "s3")]
use nsbridge_aws::Credentials;
use nsbridge_handler::Model;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

#[cfg(feature = "s3")]
pub use self::push::{Push, Pushed, Pushing};

use nsbridge_base::random::random;

use crate::cache::Cache;
use crate::config::StoreConfig;
use crate::contents::Contents;
use crate::error::StoreError;
use crate::fetch::Fetcher;
use crate::location::Location;
use crate::manifest::{MANIFEST, Manifest};
use crate::objects::Objects as _;
use crate::rate_limit::RateLimit;
use crate::stats::Counts;
use crate::{objects, pull, verify};

/// Maximum number of threads of the store's runtime. Sockets and digests are spread over them.
const MOST_THREADS: usize = 8;

/// Opens models and fetches their bytes while handlers wait for them.
///
/// The store has a runtime of its own, so a load cannot delay the bridge. Dropping the store ends
/// all loads.
#[derive(Debug)]
pub struct Store {
    config: StoreConfig,
    fetcher: Arc<Fetcher>,
    counts: Arc<Counts>,
    /// Runtime of the store. The store may be dropped on a runtime's own thread, so the drop shuts
    /// it down without waiting.
    runtime: Option<Runtime>,
    /// Root of the folders that hold files for code that needs plain paths.
    trees: PathBuf,
    /// True if `trees` is a temporary folder that is deleted with the store.
    trees_are_ours: bool,
    #[cfg(feature = "s3")]
    credentials: Option<Credentials>,
    #[cfg(feature = "s3")]
    client: tokio::sync::OnceCell<aws_sdk_s3::Client>,
}

/// Model that a caller requests.
///
/// ```
/// use nsbridge_store::{Location, Wanted};
///
/// let location: Location = "s3://models/llama@r7".parse()?;
/// assert_eq!(Wanted::from(location.clone()).manifest, None);
/// assert_eq!(Wanted::pinned(location, [7; 32]).manifest, Some([7; 32]));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wanted {
    /// Location of the model.
    pub location: Location,
    /// BLAKE3 of the manifest if the model is pinned to it.
    pub manifest: Option<[u8; 32]>,
}

impl Wanted {
    /// Requests a model whose manifest has this BLAKE3.
    pub fn pinned(location: Location, manifest: [u8; 32]) -> Self {
        Self { location, manifest: Some(manifest) }
    }
}

impl From<Location> for Wanted {
    fn from(location: Location) -> Self {
        Self { location, manifest: None }
    }
}

/// Model that was found and pinned.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The model, for a handler.
    pub model: Model,
    /// Manifest of the model; `None` if there is none, in which case nothing can be verified.
    pub manifest: Option<Arc<Manifest>>,
    /// Manifest bytes as stored. A configuration may pin their BLAKE3.
    written: Option<bytes::Bytes>,
    contents: Arc<Contents>,
}

impl Store {
    /// Opens a store.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Refused`] if a number of the configuration is out of range, and
    /// [`StoreError::System`] if the cache's folder cannot be created or threads cannot be started.
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
            rate_limit: RateLimit::new(config.bytes_per_second()),
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
            credentials: None,
            #[cfg(feature = "s3")]
            client: tokio::sync::OnceCell::new(),
        })
    }

    /// Sets the credentials of the store.
    ///
    /// Without this call the store finds them as AWS's own tools do: in the environment, the
    /// profile, or the role of the task or the instance.
    #[cfg(feature = "s3")]
    #[must_use]
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self.client = tokio::sync::OnceCell::new();
        self
    }

    /// Returns the counters of this store.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Waits until all chunks that are queued for the cache are written to disk.
    pub async fn flushed(&self) {
        if let Some(cache) = &self.fetcher.cache {
            cache.flushed().await;
        }
    }

    /// Downloads all files of a model into a folder, the manifest last. Files that are there
    /// already and match the manifest are kept.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be fetched or the folder cannot be written.
    pub async fn pull(
        &self,
        opened: &Opened,
        dir: &Path,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<(), StoreError> {
        let (contents, dir) = (opened.contents.clone(), dir.to_owned());
        // The manifest of a folder does not describe one GGUF file of it.
        let is_whole = |manifest: &Arc<Manifest>| manifest.files.len() == contents.files().len();
        let written =
            opened.written.clone().filter(|_| opened.manifest.as_ref().is_some_and(is_whole));
        self.run(async move {
            pull::bring(&contents, &dir, &progress).await?;
            let Some(written) = written else { return Ok(()) };
            // With its manifest the folder can be verified and served like the bucket.
            let folder = objects::Folder::new(dir);
            let put = folder.put(MANIFEST, written.to_vec(), false);
            put.await.map(|_| ()).map_err(|fault| fault.lasting(MANIFEST))
        })
        .await
    }

    /// Verifies all bytes of a model against its manifest and returns the damage found.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no manifest or if the bytes cannot be fetched.
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

    /// Runs a future on the store's own runtime.
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
