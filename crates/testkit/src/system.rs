//! A worker and a client on one broker, in one process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nsbridge::{Drain, Parts, ReplyConfig, Vitals, Worker};
pub use nsbridge_client as client;
use nsbridge_client::Client;
use nsbridge_crypto::{Entry, Key, Keyring, State};
use nsbridge_handler::{Handler, Models};
use nsbridge_protocol::{ModelName, Revision, Tenant};
use nsbridge_queue::Broker;
use tokio::task::JoinHandle;

/// What a system is made of; each field has a plain default.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The model that is served; unique by default, so that tests can share a broker.
    pub model: ModelName,
    /// The revision of the model, if its workers have one.
    pub revision: Option<Revision>,
    /// The keyring that client and worker share.
    pub keys: Arc<Keyring>,
    /// How replies are cut into frames.
    pub reply: ReplyConfig,
    /// How long running jobs get to finish when the worker is stopped.
    pub grace: Duration,
    /// The worker's name.
    pub worker: String,
    /// What workers of this set-up tell about themselves.
    pub vitals: Vitals,
}

impl Setup {
    /// A model with a name of its own, and a fresh key.
    ///
    /// # Errors
    ///
    /// The operating system gave no randomness.
    pub fn new() -> Result<Self> {
        let random = getrandom::u64().map_err(|error| anyhow::anyhow!("{error}"))?;
        let key = Entry::new("test".parse()?, Key::generate()?, State::Primary);
        let model = format!("test-{random:016x}").parse()?;
        Ok(Self {
            vitals: Vitals::new(&model),
            model,
            revision: None,
            keys: Arc::new(Keyring::of(vec![key])?),
            reply: ReplyConfig::default(),
            grace: Duration::from_secs(5),
            worker: "testkit".to_owned(),
        })
    }

    /// The parts of a worker on this broker.
    pub fn parts(&self, broker: Arc<dyn Broker>) -> Parts {
        Parts {
            model: self.model.clone(),
            revision: self.revision.clone(),
            name: self.worker.clone(),
            broker,
            keys: self.keys.clone(),
            reply: self.reply.clone(),
            drain: Drain::new(self.grace),
            vitals: self.vitals.clone(),
        }
    }

    /// Starts a worker and waits until it takes requests.
    ///
    /// # Errors
    ///
    /// The worker did not start.
    pub async fn worker<H: Handler>(
        &self,
        broker: Arc<dyn Broker>,
        options: H::Options,
    ) -> Result<Running> {
        let worker = nsbridge::start::<H>(self.parts(broker), options, Models::default()).await?;
        Running::start(worker).await
    }

    /// A client with the same keys.
    ///
    /// # Errors
    ///
    /// The broker cannot be reached.
    pub async fn client(&self, broker: Arc<dyn Broker>) -> Result<Client> {
        Ok(Client::connect(broker, self.keys.clone(), "test client").await?)
    }

    /// The tenant that tests ask for.
    pub fn tenant(&self) -> Tenant {
        "test".parse().expect("a plain word is a tenant")
    }
}

/// A worker that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct Running {
    drain: Drain,
    task: JoinHandle<Result<(), nsbridge::Error>>,
}

impl Running {
    /// Runs a worker and waits until it takes requests.
    ///
    /// # Errors
    ///
    /// The worker ended before that.
    pub async fn start(worker: Worker) -> Result<Self> {
        let (drain, mut consuming) = (worker.drain(), worker.consuming());
        let task = tokio::spawn(worker.run());
        let ready = consuming.wait_for(Option::is_some).await;
        ready.context("the worker ended before it was ready")?;
        Ok(Self { drain, task })
    }

    /// Drains the worker and tells how it ended.
    ///
    /// # Errors
    ///
    /// What the worker says.
    pub async fn stop(mut self) -> Result<()> {
        self.drain.begin();
        Ok((&mut self.task).await??)
    }

    /// The order to leave.
    pub fn drain(&self) -> Drain {
        self.drain.clone()
    }

    /// Waits until the worker ends by itself.
    ///
    /// # Errors
    ///
    /// What the worker says.
    pub async fn ended(mut self) -> Result<()> {
        Ok((&mut self.task).await??)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.drain.begin();
    }
}
