//! Settings for the monitoring of a worker, and for the machine services that it polls.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

/// Settings of the health and metrics pages.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HealthConfig {
    /// Address that serves `/livez`, `/readyz` and `/metrics`; none if absent.
    pub listen: Option<SocketAddr>,
    /// Time without a subscription after which a loaded worker counts as dead, in seconds.
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

/// Settings of the span export.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TelemetryConfig {
    /// Address of a collector for OTLP over HTTP, such as `http://localhost:4318`; none if absent.
    pub otlp: Option<String>,
}

impl TelemetryConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        self.otlp.as_deref().map_or(Ok(()), |url| plain("[telemetry] otlp", url))
    }
}

/// Settings for EC2 and ECS.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct FleetConfig {
    /// Watches for the interruption notice of an EC2 spot instance.
    pub spot: bool,
    /// Address of the instance's metadata service.
    pub imds: String,
    /// Uses the services of ECS for its tasks; if absent, the task's own environment decides.
    pub ecs: Option<bool>,
    /// Time without a request after which an ECS task may be scaled in again, in seconds.
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

/// Refuses addresses from which data keys would cross a network unencrypted.
pub(super) fn private(url: &str) -> Result<(), String> {
    let wanted = "[keys] endpoint_url must begin with https://, or with http:// on this machine";
    if nsbridge_store::is_private(url) { Ok(()) } else { Err(wanted.to_owned()) }
}

/// Refuses addresses other than plain HTTP, which are for services on the machine or next to it.
fn plain(field: &str, url: &str) -> Result<(), String> {
    nsbridge_telemetry::check(url).map_err(|error| format!("{field} {error}"))
}
