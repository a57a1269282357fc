//! Worker and client on one broker, in one process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nsbridge::worker::{Drain, Observability, ReplyConfig, Timing, Worker, WorkerBuilder};
pub use nsbridge_client as client;
use nsbridge_client::Client;
use nsbridge_crypto::{Entry, Key, KeyProvider, Keyring, State};
use nsbridge_handler::{AsyncHandler, Handler, Models};
use nsbridge_protocol::{ModelName, Revision, Tenant};
pub use nsbridge_queue as queue;
use nsbridge_queue::Broker;
use tokio::task::JoinHandle;

/// Configuration of a test system; every field has a default.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Model that is served. The default name is unique, so tests can share a broker.
    pub model: ModelName,
    /// Revision of the model, or `None` for workers without one.
    pub revision: Option<Revision>,
    /// Keyring that client and worker share.
    pub keys: Arc<Keyring>,
    /// Framing of replies.
    pub reply: ReplyConfig,
    /// Grace period: time that running jobs have to finish when the worker is stopped.
    pub grace: Duration,
    /// Name of the worker.
    pub worker: String,
    /// Metrics, health and trace spans of the workers of this setup.
    pub observability: Observability,
    /// Intervals and time limits of the workers.
    pub timing: Timing,
}

impl Setup {
    /// Creates a setup with a unique model name and a fresh key.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system provides no randomness.
    pub fn new() -> Result<Self> {
        let random = getrandom::u64().map_err(|error| anyhow::anyhow!("{error}"))?;
        let key = Entry::new("test".parse()?, Key::generate()?, State::Primary);
        let model = format!("test-{random:016x}").parse()?;
        Ok(Self {
            observability: Observability::new(&model),
            model,
            revision: None,
            keys: Arc::new(Keyring::of(vec![key])?),
            reply: ReplyConfig::default(),
            grace: Duration::from_secs(5),
            worker: "testkit".to_owned(),
            timing: Timing::default(),
        })
    }

    /// Returns the builder of a worker on this broker.
    pub fn builder(&self, broker: Arc<dyn Broker>) -> WorkerBuilder {
        self.builder_with_keys(broker, self.keys.clone())
    }

    /// Returns the builder of a worker on this broker, with other keys.
    pub fn builder_with_keys(
        &self,
        broker: Arc<dyn Broker>,
        keys: Arc<dyn KeyProvider>,
    ) -> WorkerBuilder {
        Worker::builder(self.model.clone(), broker, keys)
            .revision(self.revision.clone())
            .name(self.worker.clone())
            .reply(self.reply.clone())
            .drain(Drain::new(self.grace))
            .observability(self.observability.clone())
            .timing(self.timing.clone())
    }

    /// Starts a worker and waits until it consumes requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the worker does not start.
    pub async fn worker<H: Handler>(
        &self,
        broker: Arc<dyn Broker>,
        options: H::Options,
    ) -> Result<Running> {
        let worker = self.builder(broker).start::<H>(options, Models::default()).await?;
        Running::start(worker).await
    }

    /// Starts a worker with an asynchronous handler and waits until it consumes requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the worker does not start.
    pub async fn worker_async<H: AsyncHandler>(
        &self,
        broker: Arc<dyn Broker>,
        options: H::Options,
    ) -> Result<Running> {
        let worker = self.builder(broker).start_async::<H>(options, Models::default()).await?;
        Running::start(worker).await
    }

    /// Connects a client that uses the keyring of this setup.
    ///
    /// # Errors
    ///
    /// Returns an error if the broker cannot be reached.
    pub async fn client(&self, broker: Arc<dyn Broker>) -> Result<Client> {
        Ok(Client::builder()
            .broker(broker)
            .keys(self.keys.clone())
            .name("test client")
            .connect()
            .await?)
    }

    /// Returns the tenant of test requests.
    pub fn tenant(&self) -> Tenant {
        "test".parse().expect("a plain word is a tenant")
    }
}

/// Running worker. Dropping it begins a drain.
#[derive(Debug)]
pub struct Running {
    drain: Drain,
    task: JoinHandle<Result<(), nsbridge::worker::Error>>,
}

impl Running {
    /// Runs a worker and waits until it consumes requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the worker ends before that.
    pub async fn start(worker: Worker) -> Result<Self> {
        let (drain, mut consuming) = (worker.drain(), worker.consuming());
        let task = tokio::spawn(worker.run());
        let ready = consuming.wait_for(Option::is_some).await;
        ready.context("the worker ended before it was ready")?;
        Ok(Self { drain, task })
    }

    /// Drains the worker and waits until it has ended.
    ///
    /// # Errors
    ///
    /// Returns the worker's error, if it ended with one.
    pub async fn stop(mut self) -> Result<()> {
        self.drain.begin();
        Ok((&mut self.task).await??)
    }

    /// Returns the worker's graceful-shutdown signal.
    pub fn drain(&self) -> Drain {
        self.drain.clone()
    }

    /// Waits until the worker ends by itself.
    ///
    /// # Errors
    ///
    /// Returns the worker's error, if it ended with one.
    pub async fn ended(mut self) -> Result<()> {
        Ok((&mut self.task).await??)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.drain.begin();
    }
}
