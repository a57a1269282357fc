//! Observability of a worker: metrics, health and spans.

use std::time::Duration;

use nsbridge_protocol::{Fingerprint, ModelName, Revision};

use crate::health::Health;
use crate::metrics::Metrics;
use crate::telemetry::Spans;

/// What a worker tells about itself. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Vitals {
    /// What it counts and times.
    pub metrics: Metrics,
    /// Whether it lives and works.
    pub health: Health,
    /// Where its spans go.
    pub spans: Spans,
}

impl Vitals {
    /// Those of a worker whose spans nobody collects; dead after a minute without requests taken.
    pub fn new(model: &ModelName) -> Self {
        Self {
            metrics: Metrics::new(model),
            health: Health::new(model.clone(), Duration::from_secs(60)),
            spans: Spans::default(),
        }
    }

    /// The handler is loaded and warmed up.
    pub(crate) fn loaded(&self, fingerprint: Option<Fingerprint>, revision: Option<&Revision>) {
        self.metrics.loaded(fingerprint, revision);
        self.health.loaded(fingerprint, revision.cloned());
    }
}
