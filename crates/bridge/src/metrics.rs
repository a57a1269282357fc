//! What a worker counts and times, for Prometheus.
//!
//! Every series is there from the start, at zero: an alert on a series that does not exist yet never
//! fires. No label tells of a tenant, a request or anything that a user wrote.

mod loading;
mod measures;
mod names;
mod request;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_handler::erased::AnyHandler;
use nsbridge_protocol::topology::{RETRY_TIERS, RetryTier, model_queue};
use nsbridge_protocol::{ErrorCode, Fingerprint, ModelName, Revision};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};
use tokio::sync::watch;

pub(crate) use loading::Phase;
use names::Name;
pub(crate) use request::{Outcome, RequestMeter};

/// All that one worker measures. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    model: ModelName,
    durations: By<Histogram>,
    first_token: Histogram,
    per_token: Histogram,
    consumed: Counter,
    processed: By<Histogram>,
    queue_wait: Histogram,
    running: Gauge,
    slots: Gauge,
    given_up: Counter,
    leftover: Gauge,
    tokens_running: Gauge,
    token_usage: By<Histogram>,
    ended: By<Counter>,
    attempts: Counter,
    resumes: Counter,
    resumed_pieces: Counter,
    adoptions: Counter,
    orphans: Counter,
    orphans_ended: By<Counter>,
    dead_letters: By<Counter>,
    retries: By<Counter>,
    key_pauses: Counter,
    keyring_reloads: By<Counter>,
    reconnects: By<Counter>,
    blocked: Gauge,
    confirm_latency: Histogram,
    stale_acks: Counter,
    frames: Counter,
    heartbeats: Counter,
    cancels: Counter,
    queue_messages: By<Gauge>,
    loading: loading::Loading,
    measures: measures::Measures,
    info: Family<[(&'static str, String); 3], Gauge>,
    /// Requests that run now, for whoever must act on it.
    load: watch::Sender<usize>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("model", &self.model).finish_non_exhaustive()
    }
}

/// What became of a run that had lost its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrphanEnd {
    /// Its copy came back to this worker, and it went on.
    Adopted,
    /// Its slot was needed by another delivery.
    Evicted,
    /// Its copy did not come back in time.
    Expired,
    /// The worker left.
    Drained,
    /// It came to its own end before any of these.
    Done,
}

/// A run without a delivery.
#[derive(Debug)]
pub(crate) struct Orphan {
    metrics: Metrics,
    end: OrphanEnd,
}

impl Orphan {
    /// It is one no more.
    pub(crate) fn ended(mut self, how: OrphanEnd) {
        self.end = how;
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        self.metrics.0.orphans_ended.of(self.end.as_str()).inc();
    }
}

impl OrphanEnd {
    const ALL: [Self; 5] = [Self::Adopted, Self::Evicted, Self::Expired, Self::Drained, Self::Done];

    fn as_str(self) -> &'static str {
        match self {
            Self::Adopted => "adopted",
            Self::Evicted => "evicted",
            Self::Expired => "expired",
            Self::Drained => "drained",
            Self::Done => "done",
        }
    }
}

/// A connection of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Takes requests and acks them.
    Consume,
    /// Publishes replies.
    Publish,
}

impl Side {
    fn as_str(self) -> &'static str {
        match self {
            Self::Consume => "consume",
            Self::Publish => "publish",
        }
    }
}

/// A queue of the model whose depth is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Requests that wait for a worker.
    Requests,
    /// Dead letters.
    Dead,
}

impl Waiting {
    fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Dead => "dead",
        }
    }
}

/// `error.type` of a request that ended well, and what the conventions call an error without a type
/// of its own: the codes are told apart by `requests_ended`, not by each bucket.
const ERROR_TYPES: [&str; 2] = ["", "_OTHER"];

/// What becomes of a keyring's file that has changed.
const RELOADS: [&str; 2] = ["refused", "taken"];

fn error_type(failed: bool) -> &'static str {
    ERROR_TYPES[usize::from(failed)]
}

impl Metrics {
    /// What [`text`](Self::text) is to be served as.
    pub const CONTENT_TYPE: &'static str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// The metrics of a worker that serves this model, all zero.
    pub fn new(model: &ModelName) -> Self {
        let mut registry = Registry::default();
        let inner = Inner::register(&mut registry, model);
        let metrics = Self(Arc::new(Inner { registry, ..inner }));
        metrics.loaded(None, None);
        metrics
    }

    /// Everything, as [`CONTENT_TYPE`](Self::CONTENT_TYPE) says.
    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.0.registry).expect("a String takes any text");
        text
    }

    /// How many requests run now.
    pub(crate) fn load(&self) -> watch::Receiver<usize> {
        self.0.load.subscribe()
    }

    /// The handler is loaded, with this arithmetic and this revision of the model.
    pub(crate) fn loaded(&self, fingerprint: Option<Fingerprint>, revision: Option<&Revision>) {
        let fingerprint = fingerprint.map_or_else(String::new, |print| print.to_string());
        let revision = revision.map_or_else(String::new, Revision::to_string);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.0.info.clear();
        let labels = [("fingerprint", fingerprint), ("revision", revision), ("version", version)];
        self.0.info.get_or_create(&labels).set(1);
    }

    /// How many requests may run at once.
    pub(crate) fn slots(&self, count: usize) {
        self.0.slots.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A call took no notice of a stop.
    pub(crate) fn given_up(&self) {
        self.0.given_up.inc();
    }

    /// How many calls were given up and have not ended.
    pub(crate) fn leftover(&self, calls: usize) {
        self.0.leftover.set(i64::try_from(calls).unwrap_or(i64::MAX));
    }

    /// Shows what the handler measures too, from now on.
    pub(crate) fn measures_of(&self, handler: Arc<dyn AnyHandler>) {
        self.0.measures.of(handler);
    }

    /// A delivery came.
    pub(crate) fn consumed(&self) {
        self.0.consumed.inc();
    }

    /// A delivery was settled, this long after it came.
    pub(crate) fn processed(&self, took: Duration, failed: bool) {
        self.0.processed.of(error_type(failed)).observe(took.as_secs_f64());
    }

    /// A request was opened, this long after it was sealed.
    pub(crate) fn opened(&self, waited: Duration) {
        self.0.queue_wait.observe(waited.as_secs_f64());
    }

    /// A request that did not run came to its end.
    pub(crate) fn ended(&self, outcome: Outcome) {
        self.0.ended.of(outcome.as_str()).inc();
    }

    /// A reply stream was opened.
    pub(crate) fn attempt_opened(&self) {
        self.0.attempts.inc();
    }

    /// A delivery was handed to the run that had lost its own.
    pub(crate) fn adopted(&self) {
        self.0.adoptions.inc();
    }

    /// A run lost its delivery.
    pub(crate) fn orphaned(&self) -> Orphan {
        self.0.orphans.inc();
        Orphan { metrics: self.clone(), end: OrphanEnd::Done }
    }

    /// A request went to the dead-letter queue.
    pub(crate) fn dead_lettered(&self, reason: ErrorCode) {
        self.0.dead_letters.of(reason.as_str()).inc();
    }

    /// A request waits to be tried again.
    pub(crate) fn retried(&self, tier: RetryTier) {
        self.0.retries.of(tier.name).inc();
    }

    /// The key service could not answer, and the worker rests.
    pub(crate) fn key_pause(&self) {
        self.0.key_pauses.inc();
    }

    /// The keyring's file has changed and was taken, or refused.
    pub(crate) fn keyring_reloaded(&self, taken: bool) {
        self.0.keyring_reloads.of(RELOADS[usize::from(taken)]).inc();
    }

    /// A connection was opened again.
    pub(crate) fn reconnected(&self, side: Side) {
        self.0.reconnects.of(side.as_str()).inc();
    }

    /// Whether the broker holds publishers back.
    pub(crate) fn blocked(&self, blocked: bool) {
        self.0.blocked.set(i64::from(blocked));
    }

    /// The broker confirmed a frame, this long after it was published.
    pub(crate) fn confirmed(&self, took: Duration) {
        self.0.confirm_latency.observe(took.as_secs_f64());
    }

    /// A delivery was settled that was not ours any more.
    pub(crate) fn stale_ack(&self) {
        self.0.stale_acks.inc();
    }

    /// A reply frame was published.
    pub(crate) fn frame_sent(&self) {
        self.0.frames.inc();
    }

    /// It was a heartbeat.
    pub(crate) fn heartbeat_sent(&self) {
        self.0.heartbeats.inc();
    }

    /// A cancel was verified.
    pub(crate) fn cancelled(&self) {
        self.0.cancels.inc();
    }

    /// How many messages wait in a queue.
    pub(crate) fn waiting(&self, queue: Waiting, messages: u32) {
        self.0.queue_messages.of(queue.as_str()).set(i64::from(messages));
    }
}

impl Inner {
    /// All metrics at zero, registered under their names.
    fn register(registry: &mut Registry, model: &ModelName) -> Self {
        let operation = [
            ("gen_ai_operation_name", "generate_content"),
            ("gen_ai_provider_name", "nsbridge"),
            ("gen_ai_request_model", model.as_str()),
        ];
        let queue = model_queue(model);
        let messaging = [
            ("messaging_system", "rabbitmq"),
            ("messaging_destination_name", queue.as_str()),
            ("messaging_operation_name", "process"),
        ];
        let measures = measures::Measures::default();
        let of_handler = registry.sub_registry_with_prefix("nsbridge_handler");
        of_handler.register_collector(Box::new(measures.clone()));
        let mut gen_ai = Shelf(registry.sub_registry_with_labels(labels(operation)));
        let durations = || Histogram::new(names::DURATION_BUCKETS);
        let first = || Histogram::new(names::FIRST_TOKEN_BUCKETS);
        let request_durations = By::new("error_type", ERROR_TYPES, durations);
        gen_ai.seconds(&names::REQUEST_DURATION, &request_durations.family);
        let first_token = gen_ai.seconds(&names::FIRST_TOKEN, &first());
        let per_token = Histogram::new(names::PER_TOKEN_BUCKETS);
        let per_token = gen_ai.seconds(&names::PER_TOKEN, &per_token);

        let mut bus = Shelf(registry.sub_registry_with_labels(labels(messaging)));
        let consumed = bus.put(&names::CONSUMED, &Counter::default());
        let processed = By::new("error_type", ERROR_TYPES, durations);
        bus.seconds(&names::PROCESSED, &processed.family);

        let ours = registry.sub_registry_with_prefix("nsbridge");
        let mut ours = Shelf(ours.sub_registry_with_labels(labels([("model", model.as_str())])));
        let codes = || ErrorCode::ALL.map(ErrorCode::as_str);
        Self {
            durations: request_durations,
            first_token,
            per_token,
            consumed,
            processed,
            queue_wait: ours.seconds(&names::QUEUE_WAIT, &first()),
            running: ours.put(&names::REQUESTS_IN_FLIGHT, &Gauge::default()),
            slots: ours.put(&names::SLOTS, &Gauge::default()),
            given_up: ours.put(&names::GIVEN_UP, &Counter::default()),
            leftover: ours.put(&names::LEFTOVER, &Gauge::default()),
            tokens_running: ours.put(&names::TOKENS_IN_FLIGHT, &Gauge::default()),
            token_usage: ours.by(&names::TOKEN_USAGE, "type", request::TOKEN_TYPES, || {
                Histogram::new(names::TOKEN_BUCKETS)
            }),
            ended: ours.by(&names::REQUESTS_ENDED, "outcome", Outcome::names(), Counter::default),
            attempts: ours.put(&names::ATTEMPTS, &Counter::default()),
            resumes: ours.put(&names::RESUMES, &Counter::default()),
            resumed_pieces: ours.put(&names::RESUMED_PIECES, &Counter::default()),
            adoptions: ours.put(&names::ADOPTIONS, &Counter::default()),
            orphans: ours.put(&names::ORPHANS, &Counter::default()),
            orphans_ended: {
                let ends = OrphanEnd::ALL.map(OrphanEnd::as_str);
                ours.by(&names::ORPHANS_ENDED, "end", ends, Counter::default)
            },
            dead_letters: ours.by(&names::DEAD_LETTERS, "reason", codes(), Counter::default),
            retries: {
                let tiers = RETRY_TIERS.map(|tier| tier.name);
                ours.by(&names::RETRIES, "tier", tiers, Counter::default)
            },
            key_pauses: ours.put(&names::KEY_PAUSES, &Counter::default()),
            keyring_reloads: {
                ours.by(&names::KEYRING_RELOADS, "result", RELOADS, Counter::default)
            },
            reconnects: {
                let sides = [Side::Consume, Side::Publish].map(Side::as_str);
                ours.by(&names::RECONNECTS, "connection", sides, Counter::default)
            },
            blocked: ours.put(&names::BLOCKED, &Gauge::default()),
            confirm_latency: {
                let latency = Histogram::new(names::CONFIRM_BUCKETS);
                ours.seconds(&names::CONFIRM_LATENCY, &latency)
            },
            stale_acks: ours.put(&names::STALE_ACKS, &Counter::default()),
            frames: ours.put(&names::FRAMES, &Counter::default()),
            heartbeats: ours.put(&names::HEARTBEATS, &Counter::default()),
            cancels: ours.put(&names::CANCELS, &Counter::default()),
            queue_messages: {
                let queues = [Waiting::Requests, Waiting::Dead].map(Waiting::as_str);
                ours.by(&names::QUEUE_MESSAGES, "queue", queues, Gauge::default)
            },
            loading: loading::Loading::register(&mut ours),
            measures,
            info: ours.put(&names::INFO, &Family::default()),
            registry: Registry::default(),
            model: model.clone(),
            load: watch::Sender::new(0),
        }
    }
}

fn labels<const N: usize>(
    pairs: [(&'static str, &str); N],
) -> impl Iterator<Item = (Cow<'static, str>, Cow<'static, str>)> {
    pairs.map(|(label, value)| (label.into(), value.to_owned().into())).into_iter()
}

/// Where metrics with the same labels are put.
struct Shelf<'a>(&'a mut Registry);

impl Shelf<'_> {
    fn put<M: Metric + Clone>(&mut self, name: &Name, metric: &M) -> M {
        self.0.register(name.prometheus(), name.help, metric.clone());
        metric.clone()
    }

    fn seconds<M: Metric + Clone>(&mut self, name: &Name, metric: &M) -> M {
        let unit = Unit::Seconds;
        self.0.register_with_unit(name.prometheus(), name.help, unit, metric.clone());
        metric.clone()
    }

    fn by<M>(
        &mut self,
        name: &Name,
        label: &'static str,
        values: impl IntoIterator<Item = &'static str>,
        zero: fn() -> M,
    ) -> By<M>
    where
        Family<Label, M, fn() -> M>: Metric,
        M: Clone,
    {
        let by = By::new(label, values, zero);
        self.put(name, &by.family);
        by
    }
}

type Label = [(&'static str, &'static str); 1];

/// One metric for each value of a label, all there from the start.
struct By<M> {
    label: &'static str,
    family: Family<Label, M, fn() -> M>,
}

impl<M: Clone> By<M> {
    fn new(
        label: &'static str,
        values: impl IntoIterator<Item = &'static str>,
        zero: fn() -> M,
    ) -> Self {
        let family = Family::new_with_constructor(zero);
        for value in values {
            drop(family.get_or_create(&[(label, value)]));
        }
        Self { label, family }
    }

    fn of(&self, value: &'static str) -> M {
        self.family.get_or_create_owned(&[(self.label, value)])
    }
}

#[cfg(test)]
mod tests;
