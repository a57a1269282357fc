//! Metrics of a worker, for Prometheus.
//!
//! Every series exists from the start, at zero: an alert on a series that does not exist yet never
//! fires. No label contains a tenant, a request or anything that a user wrote.

mod labels;
mod loading;
mod measures;
mod names;
mod request;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nsbridge_handler::erased::AnyHandler;
use nsbridge_protocol::topology::{RETRY_TIERS, RetryTier, model_queue};
use nsbridge_protocol::{ErrorCode, Fingerprint, ModelName, Priority, Revision};
use nsbridge_telemetry::metrics::{By, Registrar};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

pub(crate) use labels::{Side, Waiting};
pub(crate) use loading::Phase;
pub(crate) use request::{Outcome, RequestMeter};

/// Metrics of one worker. Cheap to clone.
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
    queue_wait: By<Histogram>,
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
    preemptions: Counter,
    key_pauses: Counter,
    keyring_reloads: By<Counter>,
    keyring_refused: Gauge,
    reconnects: By<Counter>,
    blocked: Gauge,
    publish_failing: Gauge,
    confirm_latency: Histogram,
    stale_acks: Counter,
    frames: Counter,
    heartbeats: Counter,
    cancels: Counter,
    queue_messages: By<Gauge>,
    loading: loading::Loading,
    measures: measures::Measures,
    dropped_log_lines: Counter,
    info: Family<[(&'static str, String); 3], Gauge>,
    /// Number of running requests, for tasks that react to it.
    load: watch::Sender<usize>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("model", &self.model).finish_non_exhaustive()
    }
}

/// End of a run's time without its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrphanEnd {
    /// The copy came back to this worker, and the run went on.
    Adopted,
    /// Another delivery needed the slot.
    Evicted,
    /// The copy did not come back in time.
    Expired,
    /// The worker drained.
    Drained,
    /// The run ended by itself before any of these.
    Done,
}

/// Run without a delivery. Its end is counted when this is dropped.
#[derive(Debug)]
pub(crate) struct Orphan {
    metrics: Metrics,
    end: OrphanEnd,
}

impl Orphan {
    /// Ends the run's time without a delivery.
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

/// Values of `error.type`: for a request that ended well, and the conventions' value for an error
/// without a type of its own. Codes are counted by `requests_ended` instead of in each bucket.
const ERROR_TYPES: [&str; 2] = ["", "_OTHER"];

/// Values of the label for a changed keyring file.
const RELOADS: [&str; 2] = ["refused", "taken"];

fn error_type(failed: bool) -> &'static str {
    ERROR_TYPES[usize::from(failed)]
}

impl Metrics {
    /// Content type of [`text`](Self::text).
    pub const CONTENT_TYPE: &'static str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Creates the metrics of a worker that serves this model, all zero.
    pub fn new(model: &ModelName) -> Self {
        let mut registry = Registry::default();
        let inner = Inner::register(&mut registry, model);
        let metrics = Self(Arc::new(Inner { registry, ..inner }));
        metrics.loaded(None, None);
        metrics
    }

    /// Returns all metrics in the format of [`CONTENT_TYPE`](Self::CONTENT_TYPE).
    pub fn text(&self) -> String {
        let dropped = nsbridge_telemetry::stderr_log().dropped_lines();
        self.0.dropped_log_lines.inner().store(dropped, Ordering::Relaxed);
        let mut text = String::new();
        encode(&mut text, &self.0.registry).expect("a String takes any text");
        text
    }

    /// Returns a receiver of the number of running requests.
    pub(crate) fn load(&self) -> watch::Receiver<usize> {
        self.0.load.subscribe()
    }

    /// Records the fingerprint and the revision of the loaded handler.
    pub(crate) fn loaded(&self, fingerprint: Option<Fingerprint>, revision: Option<&Revision>) {
        let fingerprint = fingerprint.map_or_else(String::new, |print| print.to_string());
        let revision = revision.map_or_else(String::new, Revision::to_string);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.0.info.clear();
        let labels = [("fingerprint", fingerprint), ("revision", revision), ("version", version)];
        self.0.info.get_or_create(&labels).set(1);
    }

    /// Sets the maximum number of concurrent requests.
    pub(crate) fn slots(&self, count: usize) {
        self.0.slots.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts a call that ignored its stop.
    pub(crate) fn given_up(&self) {
        self.0.given_up.inc();
    }

    /// Sets the number of calls that were given up and have not ended.
    pub(crate) fn leftover(&self, calls: usize) {
        self.0.leftover.set(i64::try_from(calls).unwrap_or(i64::MAX));
    }

    /// Adds the handler's own metrics from now on.
    pub(crate) fn measures_of(&self, handler: Arc<dyn AnyHandler>) {
        self.0.measures.of(handler);
    }

    /// Counts a delivery.
    pub(crate) fn consumed(&self) {
        self.0.consumed.inc();
    }

    /// Records the time from a delivery to its settlement.
    pub(crate) fn processed(&self, took: Duration, failed: bool) {
        self.0.processed.of(error_type(failed)).observe(took.as_secs_f64());
    }

    /// Records the time from the sealing of a request of this class to its opening.
    pub(crate) fn opened(&self, priority: Priority, waited: Duration) {
        self.0.queue_wait.of(priority.as_str()).observe(waited.as_secs_f64());
    }

    /// Counts the end of a request that did not run.
    pub(crate) fn ended(&self, outcome: Outcome) {
        self.0.ended.of(outcome.as_str()).inc();
    }

    /// Counts a reply stream that was opened.
    pub(crate) fn attempt_opened(&self) {
        self.0.attempts.inc();
    }

    /// Counts a delivery that was handed to the run that had lost its own.
    pub(crate) fn adopted(&self) {
        self.0.adoptions.inc();
    }

    /// Counts a run that lost its delivery.
    pub(crate) fn orphaned(&self) -> Orphan {
        self.0.orphans.inc();
        Orphan { metrics: self.clone(), end: OrphanEnd::Done }
    }

    /// Counts a request that went to the dead-letter queue.
    pub(crate) fn dead_lettered(&self, reason: ErrorCode) {
        self.0.dead_letters.of(reason.as_str()).inc();
    }

    /// Counts a request that waits in a retry queue.
    pub(crate) fn retried(&self, tier: RetryTier) {
        self.0.retries.of(tier.name).inc();
    }

    /// Counts a bulk run that was stopped because an interactive request needed its slot.
    pub(crate) fn preempted(&self) {
        self.0.preemptions.inc();
    }

    /// Counts a pause for a busy key service.
    pub(crate) fn key_pause(&self) {
        self.0.key_pauses.inc();
    }

    /// Counts a change of the keyring's file that was taken, or refused.
    pub(crate) fn keyring_reloaded(&self, taken: bool) {
        self.0.keyring_reloads.of(RELOADS[usize::from(taken)]).inc();
        self.0.keyring_refused.set(i64::from(!taken));
    }

    /// Counts a connection that was opened again.
    pub(crate) fn reconnected(&self, side: Side) {
        self.0.reconnects.of(side.as_str()).inc();
    }

    /// Sets that no reply can be published.
    pub(crate) fn publish_failing(&self, failing: bool) {
        self.0.publish_failing.set(i64::from(failing));
    }

    /// Sets the gauge for a broker that blocks publishers.
    pub(crate) fn blocked(&self, blocked: bool) {
        self.0.blocked.set(i64::from(blocked));
    }

    /// Records the time from the publish of a frame to its confirm.
    pub(crate) fn confirmed(&self, took: Duration) {
        self.0.confirm_latency.observe(took.as_secs_f64());
    }

    /// Counts a settlement of a delivery that was not ours any more.
    pub(crate) fn stale_ack(&self) {
        self.0.stale_acks.inc();
    }

    /// Counts a published reply frame.
    pub(crate) fn frame_sent(&self) {
        self.0.frames.inc();
    }

    /// Counts a heartbeat frame.
    pub(crate) fn heartbeat_sent(&self) {
        self.0.heartbeats.inc();
    }

    /// Counts a verified cancel.
    pub(crate) fn cancelled(&self) {
        self.0.cancels.inc();
    }

    /// Sets the number of messages in a queue.
    pub(crate) fn waiting(&self, queue: Waiting, messages: u32) {
        self.0.queue_messages.of(queue.as_str()).set(i64::from(messages));
    }
}

impl Inner {
    /// Registers all metrics under their names, at zero.
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
        let mut gen_ai = Registrar::new(registry.sub_registry_with_labels(labels(operation)));
        let durations = || Histogram::new(names::DURATION_BUCKETS);
        let first = || Histogram::new(names::FIRST_TOKEN_BUCKETS);
        let request_durations =
            gen_ai.seconds_by(&names::REQUEST_DURATION, "error_type", ERROR_TYPES, durations);
        let first_token = gen_ai.seconds(&names::FIRST_TOKEN, &first());
        let per_token = Histogram::new(names::PER_TOKEN_BUCKETS);
        let per_token = gen_ai.seconds(&names::PER_TOKEN, &per_token);

        let mut bus = Registrar::new(registry.sub_registry_with_labels(labels(messaging)));
        let consumed = bus.put(&names::CONSUMED, &Counter::default());
        let processed = bus.seconds_by(&names::PROCESSED, "error_type", ERROR_TYPES, durations);

        let ours = registry.sub_registry_with_prefix("nsbridge");
        let mut ours =
            Registrar::new(ours.sub_registry_with_labels(labels([("model", model.as_str())])));
        let codes = || ErrorCode::ALL.map(ErrorCode::as_str);
        Self {
            durations: request_durations,
            first_token,
            per_token,
            consumed,
            processed,
            queue_wait: {
                let priorities = Priority::ALL.map(Priority::as_str);
                ours.seconds_by(&names::QUEUE_WAIT, "priority", priorities, first)
            },
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
            preemptions: ours.put(&names::PREEMPTIONS, &Counter::default()),
            key_pauses: ours.put(&names::KEY_PAUSES, &Counter::default()),
            keyring_reloads: {
                ours.by(&names::KEYRING_RELOADS, "result", RELOADS, Counter::default)
            },
            keyring_refused: ours.put(&names::KEYRING_REFUSED, &Gauge::default()),
            reconnects: {
                let sides = [Side::Consume, Side::Publish].map(Side::as_str);
                ours.by(&names::RECONNECTS, "connection", sides, Counter::default)
            },
            blocked: ours.put(&names::BLOCKED, &Gauge::default()),
            publish_failing: ours.put(&names::PUBLISH_FAILING, &Gauge::default()),
            confirm_latency: {
                let latency = Histogram::new(names::CONFIRM_BUCKETS);
                ours.seconds(&names::CONFIRM_LATENCY, &latency)
            },
            stale_acks: ours.put(&names::STALE_ACKS, &Counter::default()),
            frames: ours.put(&names::FRAMES, &Counter::default()),
            heartbeats: ours.put(&names::HEARTBEATS, &Counter::default()),
            cancels: ours.put(&names::CANCELS, &Counter::default()),
            queue_messages: {
                let queues = [Waiting::Requests, Waiting::Bulk, Waiting::Dead].map(Waiting::as_str);
                ours.by(&names::QUEUE_MESSAGES, "queue", queues, Gauge::default)
            },
            loading: loading::Loading::register(&mut ours),
            measures,
            dropped_log_lines: ours.put(&names::DROPPED_LOG_LINES, &Counter::default()),
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

#[cfg(test)]
mod tests;
