//! Configuration of the sources of models.

use std::fmt;
use std::path::Path;

use nsbridge_store::Wanted;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// Model of the `[models]` table: an address, or a table with the address in it.
#[derive(Clone, PartialEq, Eq)]
pub struct ModelConfig(Wanted);

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Address(String),
    Table(Table),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    source: String,
    manifest: Option<String>,
}

impl ModelConfig {
    /// Returns the model as the store looks it up.
    pub fn wanted(&self) -> &Wanted {
        &self.0
    }

    pub(super) fn resolve(&mut self, folder: &Path) {
        self.0.location = self.0.location.clone().within(folder);
    }

    /// Checks that a folder or file exists, so that a wrong one is an error before anything is
    /// started.
    pub(super) fn check(&self, name: &str) -> Result<(), String> {
        self.0.location.check_exists().map_err(|why| format!("[models] {name}: {why}"))
    }
}

impl From<Wanted> for ModelConfig {
    fn from(wanted: Wanted) -> Self {
        Self(wanted)
    }
}

impl fmt::Debug for ModelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.location)
    }
}

impl<'de> Deserialize<'de> for ModelConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = match Written::deserialize(deserializer) {
            Ok(Written::Address(source)) => Table { source, manifest: None },
            Ok(Written::Table(table)) => table,
            Err(_) => {
                let forms = "a model is an address, or a table with `source` and maybe `manifest`";
                return Err(D::Error::custom(forms));
            }
        };
        let location = table.source.parse().map_err(D::Error::custom)?;
        let manifest = table.manifest.map(|text| {
            let digest = blake3::Hash::from_hex(&text).map(Into::into);
            digest.map_err(|_| D::Error::custom("`manifest` is 64 hex digits, as push prints them"))
        });
        let wanted = match manifest.transpose()? {
            Some(manifest) => Wanted::pinned(location, manifest),
            None => Wanted::from(location),
        };
        Ok(Self(wanted))
    }
}
