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
mod counts;
mod digest;
mod error;
mod fetch;
mod load;
mod location;
mod manifest;
mod model;

mod objects;
mod pace;
mod pull;
mod random;
mod sink;
mod store;
mod verify;
mod versions;

pub use config::{StoreConfig, is_private};
pub use counts::{Count, Counts};
pub use error::StoreError;
pub use location::{CURRENT, Location};
pub use manifest::{CHUNK_BYTES, MANIFEST, Manifest, ManifestFile};
pub use store::{Opened, Store, Wanted};
#[cfg(feature = "s3")]
pub use store::{Push, Pushed, Pushing};
pub use versions::Alias;

/// Parsers of untrusted bytes, for fuzzing.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    pub use crate::objects::s3::read_response;
}
