//! Worker within another program.
//!
//! [`Worker::builder`] names what a worker is made of, [`WorkerBuilder::start`] loads its handler,
//! and [`Worker::run`] takes requests until the [`Drain`] begins.

mod builder;
mod consumer_session;
mod probes;
mod publish_probe;

use std::sync::Arc;

use nsbridge_base::random::random;
use nsbridge_crypto::KeyProvider;
use nsbridge_handler::Health as HandlerHealth;
use nsbridge_protocol::ModelName;
use nsbridge_queue::Broker;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::observability::metrics::Side;
use crate::request::context::{WorkerContext, in_a_line};

use consumer_session::ConsumerSession;

pub use crate::config::{
    BrokerConfig, Config, ConfigError, FleetConfig, HealthConfig, KeysConfig, LogConfig, LogFormat,
    ModelConfig, ReplyConfig, StoreConfig, TelemetryConfig, WorkerConfig, password_of,
};
pub use crate::drain::Drain;
pub use crate::error::Error;
pub use crate::observability::Observability;
pub use crate::observability::health::{Health, Pages};
pub use crate::observability::metrics::Metrics;
pub use crate::platform::{EcsAddresses, Platform};
pub use crate::service_manager::{ServiceManager, ServiceState};
pub use crate::timing::Timing;
pub use builder::WorkerBuilder;
pub use nsbridge_telemetry::Spans;

/// Loaded handler that consumes requests from the queue of its model.
#[derive(Debug)]
pub struct Worker {
    context: Arc<WorkerContext>,
}

impl Worker {
    /// Returns a builder of a worker that answers the requests of `model` on this broker, with these
    /// keys.
    pub fn builder(
        model: ModelName,
        broker: Arc<dyn Broker>,
        keys: Arc<dyn KeyProvider>,
    ) -> WorkerBuilder {
        WorkerBuilder::new(model, broker, keys)
    }

    /// Returns a receiver of the time since which the worker is subscribed to its queue; `None`
    /// while it is not.
    pub fn consuming(&self) -> watch::Receiver<Option<Instant>> {
        self.context.consuming.since()
    }

    /// Makes the handler drop what it keeps of ended requests whenever a key is withdrawn. Ends
    /// when the sender is dropped.
    pub(crate) fn forget_when(&self, mut withdrawn: watch::Receiver<()>) {
        let runner = self.context.runner.clone();
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
        self.context.drain.clone()
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
            never = probes::run(&self.context) => match never {},
            never = publish_probe::run(&self.context) => match never {},
        }
    }

    async fn work(&self) -> Result<(), Error> {
        let jobs = TaskTracker::new();
        let drain = self.drain();
        let ended = tokio::select! {
            _ = self.context.handler_broke() => Ok(()),
            error = self.serve(&jobs) => Err(error),
            _ = drain.begun() => Ok(()),
        };
        if drain.moment().is_none() {
            drain.begin();
        }
        self.leave(&jobs).await;
        // The handler may also have broken while the worker drained.
        let broken = self.context.broken.borrow().clone();
        match broken {
            Some(why) => Err(Error::Handler(self.in_its_words(why).await)),
            None => ended,
        }
    }

    /// Runs one session after another, and returns the error of a session that cannot begin.
    async fn serve(&self, jobs: &TaskTracker) -> Error {
        let mut pauses = self.context.timing.session_retry.pauses();
        loop {
            let connection = self.context.consume.connection().await;
            match ConsumerSession::start(&self.context, connection, jobs).await {
                Ok(session) => {
                    pauses.reset();
                    session.lost().await;
                    self.context.observability.metrics.reconnected(Side::Consume);
                }
                Err(Error::Queue(error)) if error.is_retryable() => {
                    tracing::warn!(%error, "no session, trying again");
                    sleep(pauses.next(random())).await;
                }
                Err(error) => return error,
            }
        }
    }

    /// Appends the handler's own reason, unless `why` has it already or the handler does not answer
    /// in time.
    async fn in_its_words(&self, why: String) -> String {
        if self.context.unwell.is_cancelled() {
            return why;
        }
        let runner = self.context.runner.clone();
        let asked = tokio::task::spawn_blocking(move || runner.health());
        match timeout(self.context.timing.last_health_limit, asked).await {
            Ok(Ok(HandlerHealth::Failed(reason))) => format!("{why}: {}", in_a_line(&reason)),
            _ => why,
        }
    }

    /// Waits for the jobs until the grace period is over, then hands them over.
    async fn leave(&self, jobs: &TaskTracker) {
        jobs.close();
        tokio::select! {
            () = jobs.wait() => {}
            () = self.context.drain.over() => {
                tracing::info!(jobs = jobs.len(), "the grace is over, handing jobs over");
                // Requests that are not handed over in this time are redelivered when the
                // connection closes.
                let _ = timeout(self.context.timing.hand_over_limit, jobs.wait()).await;
            }
        }
        self.context.publish.close().await;
        self.context.consume.close().await;
    }
}
