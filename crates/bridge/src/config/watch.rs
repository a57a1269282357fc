//! How a worker is watched, and what it watches itself.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

/// What orchestrators and Prometheus may ask.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HealthConfig {
    /// Where `/livez`, `/readyz` and `/metrics` are served; nowhere if absent.
    pub listen: Option<SocketAddr>,
    /// Seconds without a subscription after which a loaded worker is dead.
    pub dead_after_s: u64,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self { listen: None, dead_after_s: 60 }
    }
}

impl HealthConfig {
    pub(crate) fn dead_after(&self) -> Duration {
        Duration::from_secs(self.dead_after_s)
    }
}

/// Where spans go.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// A collector that takes OTLP over HTTP, such as `http://localhost:4318`; none if absent.
    pub otlp: Option<String>,
}

impl TelemetryConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        self.otlp.as_deref().map_or(Ok(()), |url| plain("[telemetry] otlp", url))
    }
}

/// The machines that it runs on.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FleetConfig {
    /// Whether this may be an EC2 spot instance, whose notice is to be watched for.
    pub spot: bool,
    /// The instance's metadata service.
    pub imds: String,
    /// Whether this is an ECS task; if absent, the task's own environment tells.
    pub ecs: Option<bool>,
    /// Seconds without a request after which an ECS task may be scaled in again.
    pub release_after_s: u64,
}

impl Default for FleetConfig {
    fn default() -> Self {
        Self {
            spot: false,
            imds: "http://169.254.169.254".to_owned(),
            ecs: None,
            release_after_s: 15,
        }
    }
}

impl FleetConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        plain("[fleet] imds", &self.imds)
    }
}

/// Refuses addresses from which data keys would cross a network as they are.
pub(super) fn private(url: &str) -> Result<(), String> {
    let wanted = "[keys] endpoint_url must begin with https://, or with http:// on this machine";
    if nsbridge_store::is_private(url) { Ok(()) } else { Err(wanted.to_owned()) }
}

/// Refuses what is not plain HTTP: these are services on the machine itself, or beside it.
fn plain(field: &str, url: &str) -> Result<(), String> {
    let uri = url.parse::<hyper::Uri>().ok();
    let good = uri.is_some_and(|uri| uri.scheme_str() == Some("http") && uri.host().is_some());
    if good { Ok(()) } else { Err(format!("{field} must be an address like http://host:port")) }
}
