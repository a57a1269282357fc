//! Small files by name, in a bucket or a folder: what several processes share.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
#[cfg(feature = "s3")]
use nsbridge_aws::Credentials;
use nsbridge_base::Backoff;
use nsbridge_base::random::random;
use tokio::time::{Instant, sleep, timeout_at};

use crate::config::StoreConfig;
use crate::error::{Fault, StoreError};
use crate::location::Location;
use crate::objects::{Folder, Objects};

/// Time limit of one operation with all its tries.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Back-off between two tries.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// Small files below a prefix of a bucket, or in a folder that several machines mount.
///
/// A file is written whole or not at all, and read as it was written last. Each operation is tried
/// again while the failure may pass, for at most 5 s.
///
/// ```
/// use nsbridge_store::{Location, SmallFiles, StoreConfig};
///
/// # let folder = tempfile::tempdir()?;
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let location = Location::Folder(folder.path().into());
/// let files = SmallFiles::open(&location, &StoreConfig::default()).await?;
/// assert!(files.put("notes/a1", b"text".to_vec()).await.is_ok());
/// assert!(!files.put_new("notes/a1", b"other".to_vec()).await?);
/// assert_eq!(files.names("notes/a", 10).await?, ["notes/a1"]);
/// assert_eq!(files.get("notes/a1", 100).await?.as_deref(), Some(&b"text"[..]));
/// files.remove("notes/a1").await?;
/// assert_eq!(files.get("notes/a1", 100).await?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SmallFiles(Arc<dyn Objects>);

impl SmallFiles {
    /// Opens the files of a location. The bucket is not contacted before the first operation.
    ///
    /// # Errors
    ///
    /// Returns an error if the location names a version, or if no client can be made for the
    /// bucket.
    pub async fn open(location: &Location, config: &StoreConfig) -> Result<Self, StoreError> {
        config.check().map_err(StoreError::Refused)?;
        match location {
            Location::Folder(dir) => Ok(Self(Arc::new(Folder::new(dir)))),
            #[cfg(feature = "s3")]
            Location::S3 { .. } => Self::in_bucket(location, config, None).await,
            #[cfg(not(feature = "s3"))]
            Location::S3 { .. } => {
                Err(StoreError::Refused("this build cannot read buckets".to_owned()))
            }
        }
    }

    /// Opens the files of a bucket with these credentials.
    ///
    /// # Errors
    ///
    /// Returns an error of [`open`](Self::open), or one for a location that is no bucket.
    #[cfg(feature = "s3")]
    pub async fn with_credentials(
        location: &Location,
        config: &StoreConfig,
        credentials: &Credentials,
    ) -> Result<Self, StoreError> {
        config.check().map_err(StoreError::Refused)?;
        Self::in_bucket(location, config, Some(credentials)).await
    }

    #[cfg(feature = "s3")]
    async fn in_bucket(
        location: &Location,
        config: &StoreConfig,
        credentials: Option<&Credentials>,
    ) -> Result<Self, StoreError> {
        let Location::S3 { bucket, prefix, version: None } = location else {
            let why = format!("{location} must be s3://bucket/prefix, without a version");
            return Err(StoreError::Refused(why));
        };
        let client = crate::objects::s3::connect(config, credentials).await?;
        Ok(Self(Arc::new(crate::objects::s3::S3::new(client, bucket, prefix))))
    }

    /// Reads a file of at most `most` bytes; `None` if there is none.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached or refuses, or if the file is larger.
    pub async fn get(&self, path: &str, most: u64) -> Result<Option<Bytes>, StoreError> {
        self.tried(path, || self.0.get(path, most)).await
    }

    /// Writes a file, in place of one with this name.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached or refuses.
    pub async fn put(&self, path: &str, content: Vec<u8>) -> Result<(), StoreError> {
        self.tried(path, || self.0.put(path, content.clone(), false)).await.map(drop)
    }

    /// Writes a file if there is none with this name; otherwise returns `false`.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached or refuses.
    pub async fn put_new(&self, path: &str, content: Vec<u8>) -> Result<bool, StoreError> {
        self.tried(path, || self.0.put(path, content.clone(), true)).await
    }

    /// Lists the first `most` names that begin with `prefix`, in the order of their bytes. The part
    /// of the prefix before its last slash is a folder.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached or refuses.
    pub async fn names(&self, prefix: &str, most: usize) -> Result<Vec<String>, StoreError> {
        self.tried(prefix, || self.0.names(prefix, most)).await
    }

    /// Deletes a file. Succeeds if there is none.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached or refuses.
    pub async fn remove(&self, path: &str) -> Result<(), StoreError> {
        self.tried(path, || self.0.remove(path)).await
    }

    async fn tried<T, F>(&self, path: &str, call: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let (limit, mut pauses) = (Instant::now() + OPERATION_TIMEOUT, BACKOFF.pauses());
        loop {
            let failure = match timeout_at(limit, call()).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(Fault::Lasting(error))) => return Err(error),
                Ok(Err(Fault::Passing(failure))) => failure,
                Err(_) => "no answer".into(),
            };
            let pause = pauses.next(random());
            if Instant::now() + pause >= limit {
                let object = self.0.address(path);
                return Err(StoreError::unreachable(object, OPERATION_TIMEOUT.as_secs(), failure));
            }
            sleep(pause).await;
        }
    }
}
