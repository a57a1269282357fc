//! Metrics of a scaler, for Prometheus.

mod names;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

use nsbridge_telemetry::metrics::{By, Registrar};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::model::Decided;

/// Tasks that can fail: values of a label.
const TASKS: [&str; 5] = ["broker", "management", "workers", "cloudwatch", "ecs"];

type Labels = [(&'static str, String); 1];

type Numbers = Family<Labels, Gauge>;

type Fractions = Family<Labels, Gauge<f64, AtomicU64>>;

/// Metrics of one scaler. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    desired: Numbers,
    running: Numbers,
    pending: Numbers,
    late: Numbers,
    waiting: Numbers,
    in_flight: Numbers,
    leads: Numbers,
    backlog_s: Fractions,
    reply_tokens: Fractions,
    worker_tokens_per_s: Fractions,
    decided_at: Fractions,
    decisions: Family<Labels, Counter>,
    failures: By<Counter>,
}

impl Metrics {
    pub(crate) const CONTENT_TYPE: &'static str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("nsbridge_scaler");
        let mut into = Registrar::new(&mut registry);
        let inner = Inner {
            desired: into.put(&names::DESIRED, &Numbers::default()),
            running: into.put(&names::RUNNING, &Numbers::default()),
            pending: into.put(&names::PENDING, &Numbers::default()),
            late: into.put(&names::LATE, &Numbers::default()),
            waiting: into.put(&names::WAITING, &Numbers::default()),
            in_flight: into.put(&names::IN_FLIGHT, &Numbers::default()),
            leads: into.put(&names::LEADS, &Numbers::default()),
            backlog_s: into.seconds(&names::BACKLOG, &Fractions::default()),
            reply_tokens: into.put(&names::REPLY_TOKENS, &Fractions::default()),
            worker_tokens_per_s: into.put(&names::WORKER_TOKENS, &Fractions::default()),
            decided_at: into.seconds(&names::DECIDED_AT, &Fractions::default()),
            decisions: into.put(&names::DECISIONS, &Family::default()),
            failures: into.by(&names::FAILURES, "task", TASKS, Counter::default),
            registry,
        };
        Self(Arc::new(inner))
    }

    /// Records a decision.
    pub(crate) fn decided(&self, model: &str, decided: &Decided) {
        let Inner { desired, running, pending, late, waiting, in_flight, .. } = &*self.0;
        let labels: Labels = [("model", model.to_owned())];
        let observation = &decided.observation;
        for (family, value) in [
            (desired, decided.decision.desired.into()),
            (running, observation.running.into()),
            (pending, observation.pending.into()),
            (late, decided.late_workers.into()),
            (waiting, i64::try_from(observation.waiting()).unwrap_or(i64::MAX)),
            (in_flight, i64::try_from(observation.in_flight).unwrap_or(i64::MAX)),
        ] {
            family.get_or_create(&labels).set(value);
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for (family, value) in [
            (&self.0.backlog_s, decided.backlog_s),
            (&self.0.reply_tokens, observation.tokens_per_request),
            (&self.0.worker_tokens_per_s, observation.worker_tokens_per_s),
            (&self.0.decided_at, Some(now.as_secs_f64())),
        ] {
            if let Some(value) = value {
                family.get_or_create(&labels).set(value);
            }
        }
        self.0.decisions.get_or_create(&labels).inc();
    }

    /// Records that this process decides for a model, or that another one does.
    pub(crate) fn leads(&self, model: &str, leads: bool) {
        self.0.leads.get_or_create(&[("model", model.to_owned())]).set(leads.into());
    }

    /// Records a failure of one of [`TASKS`].
    pub(crate) fn failed(&self, task: &'static str) {
        self.0.failures.of(task).inc();
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // A text takes any text.
        let _ = encode(&mut text, &self.0.registry);
        text
    }
}
