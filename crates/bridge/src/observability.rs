//! Observability of a worker: metrics, health and spans.

pub(crate) mod health;
pub(crate) mod metrics;
pub(crate) mod traces;

use std::time::Duration;

use nsbridge_protocol::{Fingerprint, ModelName, Revision};
use nsbridge_telemetry::Spans;

use crate::observability::health::Health;
use crate::observability::metrics::Metrics;

/// Metrics, health and spans of a worker. Cheap to clone.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Observability {
    /// Counters, gauges and timings.
    pub metrics: Metrics,
    /// State of the health pages.
    pub health: Health,
    /// Destination of the worker's spans.
    pub spans: Spans,
}

impl Observability {
    /// Creates metrics and health without a collector of spans. The worker counts as dead after 60 s
    /// without a subscription.
    pub fn new(model: &ModelName) -> Self {
        Self {
            metrics: Metrics::new(model),
            health: Health::new(model.clone(), Duration::from_secs(60)),
            spans: Spans::default(),
        }
    }

    /// Records that the handler is loaded and warmed up.
    pub(crate) fn loaded(&self, fingerprint: Option<Fingerprint>, revision: Option<&Revision>) {
        self.metrics.loaded(fingerprint, revision);
        self.health.loaded(fingerprint, revision.cloned());
    }
}
