//! Settings of the models and of the store that fetches them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::watch::is_private;
use crate::store::{Location, Wanted};

/// Settings for fetching models from object storage or folders.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// Folder that keeps chunks for the next start; none if absent.
    pub cache: Option<PathBuf>,
    /// Size of the cache, in gigabytes (10^9 bytes).
    pub cache_gb: f64,
    /// Maximum amount of data that a load fetches ahead of its reader, in megabytes.
    pub memory_mb: u64,
    /// Maximum number of chunks that are fetched at once.
    pub in_flight: usize,
    /// Limit on the bandwidth of all fetches together, in megabytes a second; none if absent.
    pub bandwidth_mb_s: Option<f64>,
    /// Time without a byte after which a request is repeated, in seconds.
    pub stall_s: f64,
    /// Time without a byte, over all tries, after which a load fails, in seconds.
    pub patience_s: f64,
    /// Region of the bucket; if absent, AWS's usual sources of a region are used.
    pub region: Option<String>,
    /// Address of a service other than AWS's own: `https://`, or `http://` on this machine.
    pub endpoint_url: Option<String>,
    /// Allows plain HTTP to a service on another machine. An attacker on the network can then serve
    /// another model, unless its manifest is pinned.
    pub allow_plaintext: bool,
    /// Requires that each model of `[models]` is pinned by its manifest. An attacker who can write
    /// to the bucket, or intercept the connection to it, can then serve no other model.
    pub require_manifest: bool,
    /// Puts the bucket into the path of an address; if absent, only with `endpoint_url`.
    pub path_style: Option<bool>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            cache: None,
            cache_gb: 100.0,
            memory_mb: 2048,
            in_flight: 16,
            bandwidth_mb_s: None,
            stall_s: 10.0,
            patience_s: 60.0,
            region: None,
            endpoint_url: None,
            allow_plaintext: false,
            require_manifest: false,
            path_style: None,
        }
    }
}

impl StoreConfig {
    pub(crate) fn cache_bytes(&self) -> u64 {
        (self.cache_gb * 1e9) as u64
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_mb.saturating_mul(1_000_000)
    }

    pub(crate) fn bytes_per_second(&self) -> Option<f64> {
        self.bandwidth_mb_s.map(|megabytes| megabytes * 1e6)
    }

    pub(crate) fn stall(&self) -> Duration {
        Duration::from_secs_f64(self.stall_s)
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.patience_s)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let positive = |field: &str, value: f64| {
            // Excludes NaN, and more seconds than a `Duration` holds.
            let good = value > 1e-6 && value < 1e9;
            if good { Ok(()) } else { Err(format!("[store] {field} must be a number above 0")) }
        };
        match &self.endpoint_url {
            Some(url) if !self.allow_plaintext && !is_private(url) => {
                return Err(format!("[store] endpoint_url: {}", plaintext(url)));
            }
            _ => {}
        }
        positive("cache_gb", self.cache_gb)?;
        positive("memory_mb", self.memory_mb as f64)?;
        positive("in_flight", self.in_flight as f64)?;
        positive("stall_s", self.stall_s)?;
        positive("patience_s", self.patience_s)?;
        self.bandwidth_mb_s.map_or(Ok(()), |cap| positive("bandwidth_mb_s", cap))
    }
}

/// Returns an error message for an address without TLS.
pub(crate) fn plaintext(url: &str) -> String {
    format!(
        "{url} would be reached without TLS, and the network could serve another model: use https://, \
         or set allow_plaintext = true in [store]"
    )
}

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

    /// Checks that a folder exists, so that a wrong one is an error before anything is started.
    pub(super) fn check(&self, name: &str) -> Result<(), String> {
        match &self.0.location {
            Location::Folder(dir) if !dir.is_dir() => {
                Err(format!("[models] {name}: there is no folder {}", dir.display()))
            }
            _ => Ok(()),
        }
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
        Ok(Self(Wanted { location, manifest: manifest.transpose()? }))
    }
}
