//! Configuration of a store.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Configuration of a store: the `[store]` table of a worker.
///
/// ```
/// use nsbridge_store::{Store, StoreConfig};
///
/// let mut config = StoreConfig::default();
/// config.region = Some("eu-central-1".to_owned());
/// config.endpoint_url = Some("http://storage.example".to_owned());
/// let refused = Store::open(&config).unwrap_err().to_string();
/// assert!(refused.contains("would be reached without TLS"));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct StoreConfig {
    /// Folder that caches chunks for the next start; no cache if absent.
    pub cache: Option<PathBuf>,
    /// Maximum size of the cache in gigabytes (10^9 bytes).
    pub cache_gb: f64,
    /// Megabytes that a load may fetch ahead of its reader.
    pub memory_mb: u64,
    /// Number of chunks that are fetched at once.
    pub in_flight: usize,
    /// Maximum rate of all fetching together, in megabytes per second; no limit if absent.
    pub bandwidth_mb_s: Option<f64>,
    /// Seconds without a byte after which a request is repeated.
    pub stall_s: f64,
    /// Seconds without a byte over all attempts after which a load fails.
    pub patience_s: f64,
    /// Region of the bucket; if absent, the one that AWS's own tools would use.
    pub region: Option<String>,
    /// Endpoint of a service other than AWS: `https://`, or `http://` on this machine.
    pub endpoint_url: Option<String>,
    /// True to allow plain HTTP to another machine. An attacker on the network can then substitute a
    /// model, unless its manifest is pinned.
    pub allow_plaintext: bool,
    /// True to require that every model of `[models]` is pinned by its manifest. Neither a writer of
    /// the bucket nor an attacker on the network can then substitute a model.
    pub require_manifest: bool,
    /// True to put the bucket into the path; if absent, true where `endpoint_url` is given.
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

    /// Checks the numbers and the endpoint.
    ///
    /// # Errors
    ///
    /// Returns a sentence that names the invalid field.
    pub fn check(&self) -> Result<(), String> {
        let positive = |field: &str, value: f64| {
            // Neither a NaN nor more seconds than a Duration has.
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

/// Formats the error for an address without TLS.
pub(crate) fn plaintext(url: &str) -> String {
    format!(
        "{url} would be reached without TLS, and the network could serve another model: use https://, \
         or set allow_plaintext = true in [store]"
    )
}

/// Returns true if an address has TLS or is on this machine.
///
/// ```
/// assert!(nsbridge_store::is_private("https://storage.example"));
/// assert!(nsbridge_store::is_private("http://127.0.0.1:9000"));
/// assert!(!nsbridge_store::is_private("http://storage.example"));
/// ```
pub fn is_private(url: &str) -> bool {
    let here = |host: &str| {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|ip| ip.is_loopback())
    };
    url.parse::<http::Uri>().is_ok_and(|uri| match (uri.scheme_str(), uri.host()) {
        (Some("https"), Some(_)) => true,
        (Some("http"), Some(host)) => here(host),
        _ => false,
    })
}
