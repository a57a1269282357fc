//! Parts of a worker, for programs that run one beside other things.
//!
//! [`Parts`] says what a worker is made of, [`start`](crate::start) loads its handler, and
//! [`Worker::run`] takes requests until the [`Drain`] begins.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nsbridge_crypto::KeyProvider;
use nsbridge_handler::Health as HandlerHealth;
use nsbridge_protocol::{ModelName, Revision};
use nsbridge_queue::{Broker, ReconnectingConnection};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::context::{Consuming, Shared, in_a_line};
use crate::metrics::Side;
use crate::pool::Pool;
use crate::probes;
use crate::registry::Registry;
use crate::rest::Rest;
use crate::room::Room;
use crate::runner::Runner;
use crate::session::{PAUSE, Session};

pub use crate::config::{
    BrokerConfig, Config, ConfigError, FleetConfig, HealthConfig, KeysConfig, LogConfig, LogFormat,
    ModelConfig, ReplyConfig, StoreConfig, TelemetryConfig, WorkerConfig, password_of,
};
pub use crate::drain::Drain;
pub use crate::error::Error;
pub use crate::fleet::{EcsAddresses, Fleet};
pub use crate::health::{Health, Pages};
pub use crate::metrics::Metrics;
pub use crate::telemetry::Spans;
pub use crate::vitals::Vitals;

/// Time limit of handing jobs over after the grace period.
const HAND_OVER: Duration = Duration::from_secs(10);

/// Time limit for the handler to report why it is broken.
const SAYS_WITHIN: Duration = Duration::from_secs(1);

/// Loaded handler that consumes requests from the queue of its model.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
}

/// Parts that a worker is made from.
#[derive(Debug)]
pub struct Parts {
    /// Model whose queue the worker consumes.
    pub model: ModelName,
    /// Revision of the model that the worker serves, if it has one.
    pub revision: Option<Revision>,
    /// Name of the worker in logs and replies.
    pub name: String,
    /// Broker of the model's queue.
    pub broker: Arc<dyn Broker>,
    /// Source of the keys.
    pub keys: Arc<dyn KeyProvider>,
    /// Settings that cut replies into frames.
    pub reply: ReplyConfig,
    /// Graceful-shutdown signal.
    pub drain: Drain,
    /// Metrics, health and spans of the worker.
    pub vitals: Vitals,
}

impl Worker {
    pub(crate) fn new(parts: Parts, runner: Runner) -> Result<Self, Error> {
        let Parts { model, revision, name, broker, keys, reply, drain, vitals } = parts;
        vitals.loaded(runner.fingerprint(), revision.as_ref());
        vitals.metrics.slots(runner.slots());
        vitals.metrics.measures_of(runner.handler());
        let shared = Shared {
            control_queue: Mutex::default(),
            publish: Pool::new(broker.clone(), format!("{name} publish"), vitals.metrics.clone()),
            consume: ReconnectingConnection::new(broker, format!("{name} consume")),
            registry: Registry::default(),
            room: Arc::new(Room::new(runner.slots())),
            consuming: Consuming::default(),
            rest: Rest::default(),
            broken: watch::Sender::new(None),
            unwell: CancellationToken::new(),
            model,
            revision,
            reply,
            keys,
            runner,
            drain,
            vitals,
            name,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns a receiver of the time since which the worker is subscribed to its queue; `None`
    /// while it is not.
    pub fn consuming(&self) -> watch::Receiver<Option<Instant>> {
        self.shared.consuming.since()
    }

    /// Makes the handler drop what it keeps of ended requests whenever a key is withdrawn. Ends
    /// when the sender is dropped.
    pub(crate) fn forget_when(&self, mut withdrawn: watch::Receiver<()>) {
        let runner = self.shared.runner.clone();
        tokio::spawn(async move {
            while withdrawn.changed().await.is_ok() {
                tracing::info!("a key was withdrawn: what is kept of ended requests is dropped");
                let runner = runner.clone();
                let _ = tokio::task::spawn_blocking(move || runner.forget()).await;
            }
        });
    }

    /// Returns the graceful-shutdown signal that the worker was made with.
    pub fn drain(&self) -> Drain {
        self.shared.drain.clone()
    }

    /// Consumes and answers requests until the worker drains. Then it finishes the jobs that fit
    /// into the grace period and requeues the rest.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Handler`] if the handler broke, and [`Error::Queue`] if a queue of the
    /// broker does not have the protocol's arguments. Connection failures are retried without a
    /// limit.
    pub async fn run(self) -> Result<(), Error> {
        tokio::select! {
            ended = self.work() => ended,
            never = probes::run(&self.shared) => match never {},
        }
    }

    async fn work(&self) -> Result<(), Error> {
        let jobs = TaskTracker::new();
        let drain = self.drain();
        let ended = tokio::select! {
            _ = self.shared.handler_broke() => Ok(()),
            error = self.serve(&jobs) => Err(error),
            _ = drain.begun() => Ok(()),
        };
        if drain.moment().is_none() {
            drain.begin();
        }
        self.leave(&jobs).await;
        // The handler may also have broken while the worker drained.
        let broken = self.shared.broken.borrow().clone();
        match broken {
            Some(why) => Err(Error::Handler(self.in_its_words(why).await)),
            None => ended,
        }
    }

    /// Runs one session after another, and returns the error of a session that cannot begin.
    async fn serve(&self, jobs: &TaskTracker) -> Error {
        loop {
            let connection = self.shared.consume.connection().await;
            match Session::start(&self.shared, connection, jobs).await {
                Ok(session) => {
                    session.lost().await;
                    self.shared.vitals.metrics.reconnected(Side::Consume);
                }
                Err(Error::Queue(error)) if error.is_retryable() => {
                    tracing::warn!(%error, "no session, trying again");
                    sleep(PAUSE).await;
                }
                Err(error) => return error,
            }
        }
    }

    /// Appends the handler's own reason, unless `why` has it already or the handler does not answer
    /// in time.
    async fn in_its_words(&self, why: String) -> String {
        if self.shared.unwell.is_cancelled() {
            return why;
        }
        let runner = self.shared.runner.clone();
        let asked = tokio::task::spawn_blocking(move || runner.health());
        match timeout(SAYS_WITHIN, asked).await {
            Ok(Ok(HandlerHealth::Failed(reason))) => format!("{why}: {}", in_a_line(&reason)),
            _ => why,
        }
    }

    /// Waits for the jobs until the grace period is over, then hands them over.
    async fn leave(&self, jobs: &TaskTracker) {
        jobs.close();
        tokio::select! {
            () = jobs.wait() => {}
            () = self.shared.drain.over() => {
                tracing::info!(jobs = jobs.len(), "the grace is over, handing jobs over");
                // Requests that are not handed over in this time are redelivered when the
                // connection closes.
                let _ = timeout(HAND_OVER, jobs.wait()).await;
            }
        }
        self.shared.publish.close().await;
        self.shared.consume.close().await;
    }
}
