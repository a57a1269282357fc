//! Builder of a worker.

use std::sync::Arc;
use std::time::Duration;

use nsbridge_crypto::KeyProvider;
use nsbridge_handler::erased::Servable;
use nsbridge_handler::{AsyncHandler, Error as HandlerError, Handler, Models};
use nsbridge_protocol::{ModelName, Revision};
use nsbridge_queue::{Broker, ReconnectingConnection};
use nsbridge_telemetry::host_name;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::config::ReplyConfig;
use crate::drain::Drain;
use crate::error::Error;
use crate::observability::Observability;
use crate::request::channel_pool::ChannelPool;
use crate::request::context::{Consuming, WorkerContext};
use crate::request::in_flight::InFlight;
use crate::request::intake_pause::IntakePause;
use crate::request::publishing::Publishing;
use crate::request::runner::Runner;
use crate::request::slots::SlotPool;
use crate::timing::Timing;

/// Default grace period of running jobs.
const GRACE: Duration = Duration::from_secs(20);

/// Builder of a [`Worker`]. Only model, broker and keys have no default.
#[derive(Debug)]
#[must_use = "a builder does nothing until `start`"]
pub struct WorkerBuilder {
    model: ModelName,
    broker: Arc<dyn Broker>,
    keys: Arc<dyn KeyProvider>,
    revision: Option<Revision>,
    name: Option<String>,
    reply: ReplyConfig,
    bulk: bool,
    show_errors: bool,
    drain: Drain,
    observability: Option<Observability>,
    timing: Timing,
}

impl WorkerBuilder {
    pub(super) fn new(
        model: ModelName,
        broker: Arc<dyn Broker>,
        keys: Arc<dyn KeyProvider>,
    ) -> Self {
        Self {
            model,
            broker,
            keys,
            revision: None,
            name: None,
            reply: ReplyConfig::default(),
            bulk: true,
            show_errors: false,
            drain: Drain::new(GRACE),
            observability: None,
            timing: Timing::default(),
        }
    }

    /// Sets the revision of the model that the worker serves. Default: none.
    pub fn revision(mut self, revision: impl Into<Option<Revision>>) -> Self {
        self.revision = revision.into();
        self
    }

    /// Sets the name of the worker in logs and replies. Default: the host's name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the settings that cut replies into frames.
    pub fn reply(mut self, reply: ReplyConfig) -> Self {
        self.reply = reply;
        self
    }

    /// Sets whether the worker takes bulk requests into slots that no interactive request needs.
    /// Default: true.
    pub fn bulk(mut self, bulk: bool) -> Self {
        self.bulk = bulk;
        self
    }

    /// Sets whether the worker logs the errors that the handler returns. They may quote prompts, so this
    /// is for development alone. Default: false.
    pub fn show_errors(mut self, show_errors: bool) -> Self {
        self.show_errors = show_errors;
        self
    }

    /// Sets the graceful-shutdown signal. Default: a signal of the worker's own, with a grace period
    /// of 20 s.
    pub fn drain(mut self, drain: Drain) -> Self {
        self.drain = drain;
        self
    }

    /// Sets metrics, health and spans. Default: new ones, and no collector of spans.
    pub fn observability(mut self, observability: Observability) -> Self {
        self.observability = Some(observability);
        self
    }

    /// Sets intervals and time limits. Default: those of production.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Loads a [`Handler`] and makes a worker of it, without running it yet.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Queue`] if the broker cannot be reached, because at the start a wrong address
    /// is more likely than an outage. Returns [`Error::Load`] with the handler's error if the handler
    /// does not load.
    pub async fn start<H: Handler>(
        self,
        options: H::Options,
        models: Models,
    ) -> Result<Worker, Error> {
        self.start_any::<H, _>(options, models).await
    }

    /// Loads an [`AsyncHandler`] and makes a worker of it, as [`start`](Self::start) does with a
    /// [`Handler`].
    ///
    /// # Errors
    ///
    /// Returns an error as [`start`](Self::start) does.
    pub async fn start_async<H: AsyncHandler>(
        self,
        options: H::Options,
        models: Models,
    ) -> Result<Worker, Error> {
        self.start_any::<H, _>(options, models).await
    }

    pub(crate) async fn start_any<H: Servable<K>, K>(
        self,
        options: H::Options,
        models: Models,
    ) -> Result<Worker, Error> {
        let Self {
            model,
            broker,
            keys,
            revision,
            name,
            reply,
            bulk,
            show_errors,
            drain,
            observability,
            timing,
        } = self;
        let name = name.unwrap_or_else(host_name);
        let observability = observability.unwrap_or_else(|| Observability::new(&model));
        let first = broker.connect(&format!("{name} start")).await?;
        first.declare_model(&model).await?;
        first.close().await;
        let metrics = observability.metrics.clone();
        let runner = Runner::load::<H, K>(options, models, metrics.clone(), &timing).await;
        let runner = runner.map_err(|error| Error::Load(cause(error)))?;
        let fingerprint = runner.fingerprint();
        observability.loaded(fingerprint, revision.as_ref());
        metrics.slots(runner.slots());
        metrics.measures_of(runner.handler());
        let connection = |purpose| {
            let connection =
                ReconnectingConnection::new(broker.clone(), format!("{name} {purpose}"));
            connection.with_timing(timing.queue.clone())
        };
        let context = WorkerContext {
            control_queue: Mutex::default(),
            publish: ChannelPool::new(connection("publish"), metrics),
            consume: connection("consume"),
            publishing: Publishing::new(drain.clone()),
            in_flight: InFlight::default(),
            slots: Arc::new(SlotPool::new(runner.slots(), &timing)),
            consuming: Consuming::default(),
            intake: IntakePause::new(&timing),
            broken: watch::Sender::new(None),
            unwell: CancellationToken::new(),
            model,
            revision,
            reply,
            bulk,
            show_errors,
            keys,
            runner,
            fingerprint,
            drain,
            observability,
            timing,
            name,
        };
        Ok(Worker { context: Arc::new(context) })
    }
}

/// Returns the cause of a handler's error, which itself is no `std::error::Error`.
fn cause(error: HandlerError) -> nsbridge_handler::Cause {
    match error {
        HandlerError::Failed(cause) | HandlerError::Retry(cause) | HandlerError::Fatal(cause) => {
            cause
        }
        other => other.to_string().into(),
    }
}
