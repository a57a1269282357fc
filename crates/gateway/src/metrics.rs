//! Metrics of a gateway, for Prometheus.
//!
//! Series exist from the start, at zero, except those of requests by route and status. Labels have
//! values of the configuration or of the code, never those that a client sent.

mod names;
mod reply;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::http::{Method, header};
use axum::routing::get;
use nsbridge_client::{ErrorCode, ModelName};
use nsbridge_telemetry::metrics::Registrar;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use self::reply::OUTCOMES;
use crate::catalog::{Models, Task};

/// Content type of the metrics.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics of one gateway. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Inner>);

type Labels<const N: usize> = [(&'static str, String); N];

type Histograms<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

type Counters = Family<[(&'static str, &'static str); 1], Counter>;

/// Files that are reloaded, each with 1 while its change is refused.
#[derive(Clone, Debug, Default)]
pub(crate) struct RefusedFiles(Family<[(&'static str, &'static str); 1], Gauge>);

/// File that a gateway reloads when it changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReloadedFile {
    Keyring,
    ApiKeys,
    Certificate,
}

impl RefusedFiles {
    /// Records that the last change of a file was refused, or taken.
    pub(crate) fn set(&self, file: ReloadedFile, refused: bool) {
        self.gauge(file).set(i64::from(refused));
    }

    fn gauge(&self, file: ReloadedFile) -> Gauge {
        let name = match file {
            ReloadedFile::Keyring => "keyring",
            ReloadedFile::ApiKeys => "api_keys",
            ReloadedFile::Certificate => "certificate",
        };
        self.0.get_or_create_owned(&[("file", name)])
    }
}

struct Inner {
    registry: Registry,
    /// Names of the models by their queues.
    models: HashMap<ModelName, String>,
    requests: Histograms<3>,
    first_chunk: Histograms<2>,
    durations: Histograms<2>,
    token_usage: Histograms<3>,
    running: Gauge,
    streams: Gauge,
    replies: Counters,
    failed: Counters,
    restarted: Counter,
    reattached: Counter,
    joined: Counter,
    reserved: Counter,
    settled: Counter,
    refused: Counters,
    dropped_log_lines: Counter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Response that streams events. Its end is counted when this is dropped.
#[derive(Debug)]
pub(crate) struct OpenStream(Metrics);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.0.streams.dec();
    }
}

impl Metrics {
    /// Creates the metrics of a gateway that serves these models.
    pub(crate) fn new(models: &Models, files: &RefusedFiles) -> Self {
        let mut registry = Registry::default();
        let mut inner = Inner::register(&mut registry, files);
        for (name, model, task) in models.queues() {
            let operations: &[&str] = match task {
                Task::Generate => &["chat", "completion", "message", "response", "run"],
                Task::Embed => &["embedding"],
                Task::Judge => &["decision", "moderation"],
            };
            for operation in operations {
                inner.create(name, operation, task);
            }
            // Two models of one queue count as the first of them.
            inner.models.entry(model).or_insert_with(|| name.to_owned());
        }
        inner.registry = registry;
        Self(Arc::new(inner))
    }

    /// Returns all metrics in the format of OpenMetrics.
    pub(crate) fn text(&self) -> String {
        let dropped = nsbridge_telemetry::stderr_log().dropped_lines();
        self.0.dropped_log_lines.inner().store(dropped, Ordering::Relaxed);
        let mut text = String::new();
        // A text takes any text.
        let _ = encode(&mut text, &self.0.registry);
        text
    }

    /// Returns the page of the metrics.
    pub(crate) fn page(self) -> Router {
        let shown = move || {
            let text = self.text();
            async move { ([(header::CONTENT_TYPE, CONTENT_TYPE)], text) }
        };
        Router::new().route("/metrics", get(shown))
    }

    /// Records a response. `route` is the template of its path, if there is one.
    pub(crate) fn responded(
        &self,
        method: &Method,
        route: Option<&str>,
        status: u16,
        took: Duration,
    ) {
        let known = names::METHODS.into_iter().find(|known| *known == method.as_str());
        let labels = [
            ("method", known.unwrap_or("_OTHER").to_owned()),
            ("route", route.unwrap_or(names::OTHER).to_owned()),
            ("status", status.to_string()),
        ];
        self.0.requests.get_or_create_owned(&labels).observe(took.as_secs_f64());
    }

    /// Counts a response with an error of this code.
    pub(crate) fn refused(&self, code: &str) {
        self.0.refused.get_or_create_owned(&[("code", known(code))]).inc();
    }

    /// Returns the number of replies in progress.
    pub(crate) fn replies_running(&self) -> u64 {
        u64::try_from(self.0.running.get()).unwrap_or_default()
    }

    /// Counts a response that streams events, until its end.
    pub(crate) fn stream_opened(&self) -> OpenStream {
        self.0.streams.inc();
        OpenStream(self.clone())
    }
}

impl Inner {
    /// Registers all metrics under their names.
    fn register(registry: &mut Registry, files: &RefusedFiles) -> Self {
        let mut all = Registrar::new(registry);
        let requests = all.seconds(&names::REQUEST_DURATION, &requests());
        let first_chunk = all.seconds(&names::FIRST_CHUNK, &first_chunks());
        let durations = all.seconds(&names::DURATION, &durations());
        let token_usage = all.put(&names::TOKEN_USAGE, &token_usage());
        let mut ours = Registrar::new(registry.sub_registry_with_prefix("nsbridge_gateway"));
        let [replies, failed, refused] = [(); 3].map(|()| Counters::default());
        for file in [ReloadedFile::Keyring, ReloadedFile::ApiKeys, ReloadedFile::Certificate] {
            // A change that was refused before stays so.
            drop(files.gauge(file));
        }
        ours.put(&names::FILE_REFUSED, &files.0);
        for end in OUTCOMES {
            drop(replies.get_or_create(&[("end", end)]));
        }
        for code in codes() {
            drop(refused.get_or_create(&[("code", code)]));
            drop(failed.get_or_create(&[("code", code)]));
        }
        Self {
            registry: Registry::default(),
            models: HashMap::new(),
            requests,
            first_chunk,
            durations,
            token_usage,
            running: ours.put(&names::RUNNING, &Gauge::default()),
            streams: ours.put(&names::STREAMS, &Gauge::default()),
            replies: ours.put(&names::REPLIES, &replies),
            failed: ours.put(&names::FAILED, &failed),
            restarted: ours.put(&names::RESTARTED, &Counter::default()),
            reattached: ours.put(&names::REATTACHED, &Counter::default()),
            joined: ours.put(&names::JOINED, &Counter::default()),
            reserved: ours.put(&names::RESERVED, &Counter::default()),
            settled: ours.put(&names::SETTLED, &Counter::default()),
            refused: ours.put(&names::REFUSED, &refused),
            dropped_log_lines: ours.put(&names::DROPPED_LOG_LINES, &Counter::default()),
        }
    }

    /// Creates the series of a model's operation.
    fn create(&self, model: &str, operation: &str, task: Task) {
        let labels = of_model(model, operation);
        drop(self.durations.get_or_create(&labels));
        // All vectors of a request come at its end.
        if task == Task::Generate {
            drop(self.first_chunk.get_or_create(&labels));
        }
        let [model, operation] = labels;
        for kind in ["input", "output"] {
            let labels = [model.clone(), operation.clone(), ("type", kind.to_owned())];
            drop(self.token_usage.get_or_create(&labels));
        }
    }
}

fn of_model(model: &str, operation: &str) -> Labels<2> {
    [("model", model.to_owned()), ("operation", operation.to_owned())]
}

/// Returns the codes that requests are counted by.
fn codes() -> impl Iterator<Item = &'static str> {
    let workers = ErrorCode::ALL.into_iter().map(ErrorCode::as_str);
    let own = names::CODES.into_iter().chain([names::OTHER]);
    own.chain(workers.filter(|code| !names::CODES.contains(code) && *code != names::OTHER))
}

/// Returns the code as it is counted.
fn known(code: &str) -> &'static str {
    codes().find(|known| *known == code).unwrap_or(names::OTHER)
}

fn requests() -> Histograms<3> {
    Family::new_with_constructor(|| Histogram::new(names::REQUEST_BUCKETS))
}

fn first_chunks() -> Histograms<2> {
    Family::new_with_constructor(|| Histogram::new(names::FIRST_CHUNK_BUCKETS))
}

fn durations() -> Histograms<2> {
    Family::new_with_constructor(|| Histogram::new(names::DURATION_BUCKETS))
}

fn token_usage() -> Histograms<3> {
    Family::new_with_constructor(|| Histogram::new(names::TOKEN_BUCKETS))
}

#[cfg(test)]
mod tests;
