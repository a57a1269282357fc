//! Model store: reads models from object storage or from folders, verifies and caches them.
//!
//! A model is a [`Manifest`] and the files that it lists. Every chunk that is read is verified
//! against the manifest, pinned to one version of its object, and written straight into its final
//! buffer.
//!
//! | type | purpose |
//! |---|---|
//! | [`Store`] | opens, pulls, verifies and pushes models; has threads of its own |
//! | [`StoreConfig`] | the `[store]` table of a worker: cache, limits, region, endpoint |
//! | [`Location`] | `s3://bucket/models/NAME@VERSION`, or a folder |
//! | [`Wanted`] | a location, and the digest that its manifest must have |
//! | [`SmallFiles`] | small files by name, such as the records that gateways share |
//! | [`Opened`] | a model that was found and pinned; its `model` goes to a handler |
//!
//! ```
//! use nsbridge_store::{Location, Store, StoreConfig};
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/models/six-languages");
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! let store = Store::open(&StoreConfig::default())?;
//! let opened = store.model(&Location::Folder(folder.into()).into()).await?;
//! assert!(opened.model.files().any(|path| path == "model.safetensors"));
//!
//! // A folder without a manifest cannot be verified, but its files can be copied.
//! assert!(opened.manifest.is_none());
//! let copy = tempfile::tempdir()?;
//! store.pull(&opened, copy.path(), |_bytes| ()).await?;
//! assert!(copy.path().join("config.json").exists());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! - `s3` (default): buckets of S3 and of services that speak its protocol.

mod cache;
mod chunk_writer;
mod config;
mod contents;
mod digest;
mod error;
mod fetch;
mod load;
mod location;
mod manifest;
mod objects;
mod pull;
mod rate_limit;
mod small_files;
mod source;
mod stats;
mod store;
mod verify;
mod versions;

pub use config::{StoreConfig, is_private};
pub use error::StoreError;
pub use location::{CURRENT, Location};
pub use manifest::{CHUNK_BYTES, MANIFEST, Manifest, ManifestFile};
#[cfg(feature = "s3")]
pub use nsbridge_aws::Credentials;
pub use small_files::SmallFiles;
pub use stats::{Count, Counts};
pub use store::{Opened, Store, Wanted};
#[cfg(feature = "s3")]
pub use store::{Push, Pushed, Pushing};
pub use versions::Alias;
