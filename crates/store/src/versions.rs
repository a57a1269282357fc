//! Revisions of a model, and the aliases that point to them.
//!
//! ```text
//! s3://bucket/models/tale-7m/2026-11-21/nsb-manifest.json  a revision: a folder that never changes
//! s3://bucket/models/tale-7m/current                       an alias: a small file
//! ```

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::StoreError;
use crate::fetch::Fetcher;
use crate::manifest::{check_revision, hex, unhex};
use crate::objects::Objects;

const LONGEST_ALIAS: u64 = 4 << 10;
const SCHEMA: u32 = 1;

/// Alias: a name that points to a revision. A rollout or rollback writes only the alias.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alias {
    /// Revision that the alias points to.
    pub revision: String,
    /// BLAKE3 of the revision's manifest, which pins every byte of it.
    pub manifest: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct Written {
    schema: u32,
    revision: String,
    manifest: String,
}

impl Alias {
    /// Creates an alias of the revision with this manifest.
    pub fn new(revision: impl Into<String>, manifest: [u8; 32]) -> Self {
        Self { revision: revision.into(), manifest }
    }

    /// Parses an alias.
    ///
    /// # Errors
    ///
    /// Returns the reason if the alias is invalid, for a sentence that names the alias.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let written: Written =
            serde_json::from_slice(bytes).map_err(|error| format!("it is no alias: {error}"))?;
        if written.schema != SCHEMA {
            return Err(format!("its schema is {}, this program reads {SCHEMA}", written.schema));
        }
        check_revision(&written.revision)?;
        let manifest: Digest = unhex(&written.manifest).ok_or("its manifest is no hash")?;
        Ok(Self { revision: written.revision, manifest })
    }

    /// Serializes the alias to the JSON that [`parse`](Self::parse) reads.
    pub fn to_json(&self) -> Vec<u8> {
        let (revision, manifest) = (self.revision.clone(), hex(&self.manifest));
        let written = Written { schema: SCHEMA, revision, manifest };
        let mut json = serde_json::to_vec_pretty(&written).unwrap_or_default();
        json.push(b'\n');
        json
    }

    /// Reads the alias of this name; returns `None` if there is none.
    pub(crate) async fn find(
        objects: &dyn Objects,
        fetcher: &Fetcher,
        name: &str,
    ) -> Result<Option<Self>, StoreError> {
        let address = objects.address(name);
        let found = fetcher.patiently(&address, || objects.get(name, LONGEST_ALIAS)).await?;
        let parse = |bytes: bytes::Bytes| {
            Self::parse(&bytes).map_err(|why| StoreError::unusable(&address, why))
        };
        found.map(parse).transpose()
    }
}
