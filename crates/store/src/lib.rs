//! Model store: reads models from object storage or from folders.
//!
//! A model is a [`Manifest`] and the files that it lists. Every chunk that is read is verified
//! against the manifest, pinned to one version of its object, and written straight into its final
//! buffer.

#[cfg(feature = "aws")]
#[doc(hidden)]
pub mod aws;
mod cache;
mod config;
mod contents;
mod digest;
mod error;
mod fetch;
mod load;
mod location;
mod manifest;
mod source;
mod stats;

mod chunk_writer;
mod objects;
mod pull;
mod random;
mod rate_limit;
mod store;
mod verify;
mod versions;

pub use config::{StoreConfig, is_private};
pub use error::StoreError;
pub use location::{CURRENT, Location};
pub use manifest::{CHUNK_BYTES, MANIFEST, Manifest, ManifestFile};
pub use stats::{Count, Counts};
pub use store::{Opened, Store, Wanted};
#[cfg(feature = "s3")]
pub use store::{Push, Pushed, Pushing};
pub use versions::Alias;
