//! Metrics of a cold start: its phases, and the sources of its bytes.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nsbridge_store::{Count, Counts};
use nsbridge_telemetry::metrics::{By, Registrar};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::{Metrics, names};

/// Phase of a cold start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Finding the models: aliases, manifests, versions of objects.
    Find,
    /// The handler's `load`: fetching weights, and building the model from them.
    Load,
    /// The handler's `warm_up`.
    WarmUp,
}

impl Phase {
    const ALL: [Self; 3] = [Self::Find, Self::Load, Self::WarmUp];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Find => "find",
            Self::Load => "load",
            Self::WarmUp => "warm_up",
        }
    }
}

/// Sources of a model's bytes: the store's folder or bucket, and the cache in front of it.
const SOURCES: [&str; 2] = ["store", "cache"];

pub(super) struct Loading {
    phases: By<Gauge<f64, AtomicU64>>,
    bytes: By<Counter>,
    damaged: By<Counter>,
    retries: Counter,
}

impl Loading {
    pub(super) fn register(registrar: &mut Registrar<'_>) -> Self {
        let phases = Phase::ALL.map(Phase::as_str);
        Self {
            phases: registrar.seconds_by(&names::LOAD_PHASE, "phase", phases, Gauge::default),
            bytes: registrar.by(&names::MODEL_BYTES, "from", SOURCES, Counter::default),
            damaged: registrar.by(&names::DAMAGED_CHUNKS, "from", SOURCES, Counter::default),
            retries: registrar.put(&names::STORE_RETRIES, &Counter::default()),
        }
    }
}

impl Metrics {
    /// Records the duration of a phase.
    pub(crate) fn phase(&self, phase: Phase, took: Duration) {
        self.0.loading.phases.of(phase.as_str()).set(took.as_secs_f64());
    }

    /// Updates the counters of the store.
    pub(crate) fn store(&self, counts: &Counts) {
        let loading = &self.0.loading;
        catch_up(&loading.bytes.of("store"), &counts.from_store);
        catch_up(&loading.bytes.of("cache"), &counts.from_cache);
        catch_up(&loading.damaged.of("store"), &counts.wrong);
        catch_up(&loading.damaged.of("cache"), &counts.wrong_in_cache);
        catch_up(&loading.retries, &counts.retries);
    }
}

fn catch_up(counter: &Counter, count: &Count) {
    counter.inc_by(count.get().saturating_sub(counter.get()));
}
