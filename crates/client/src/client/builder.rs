//! Builder that connects a client.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use nsbridge_crypto::{KeyProvider, Keyring};
use nsbridge_queue::{AmqpBroker, Broker};

use super::Client;
use crate::error::{Error, Result};
use crate::timing::Timing;

/// Builder of a [`Client`]: a broker and keys, and what has a default.
///
/// The broker is an address or any [`Broker`], the keys are a keyring's file or any [`KeyProvider`].
///
/// ```
/// use std::sync::Arc;
///
/// use nsbridge_client::{Client, Key, Keyring, MemoryBroker};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::builder()
///     .broker(Arc::new(MemoryBroker::new()))
///     .keys(Arc::new(Keyring::of_key("test".parse()?, Key::generate()?)))
///     .name("api-1")
///     .connect()
///     .await?;
/// # drop(client);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct ClientBuilder {
    broker: Option<Source<String, dyn Broker>>,
    keys: Option<Source<PathBuf, dyn KeyProvider>>,
    name: String,
    timing: Timing,
}

/// Address of a part, or the part itself.
enum Source<A, T: ?Sized> {
    At(A),
    Given(Arc<T>),
}

impl ClientBuilder {
    pub(super) fn new() -> Self {
        let name = "nsbridge client".to_owned();
        Self { broker: None, keys: None, name, timing: Timing::default() }
    }

    /// Sets the address of a RabbitMQ broker, such as `amqp://user:password@host:5672/%2f`.
    pub fn amqp(self, url: impl Into<String>) -> Self {
        Self { broker: Some(Source::At(url.into())), ..self }
    }

    /// Sets the broker.
    pub fn broker(self, broker: Arc<dyn Broker>) -> Self {
        Self { broker: Some(Source::Given(broker)), ..self }
    }

    /// Sets the file of the client's keyring, as `nsbridge keys derive` makes one.
    pub fn keyring(self, path: impl Into<PathBuf>) -> Self {
        Self { keys: Some(Source::At(path.into())), ..self }
    }

    /// Sets the source of the keys.
    pub fn keys(self, keys: Arc<dyn KeyProvider>) -> Self {
        Self { keys: Some(Source::Given(keys)), ..self }
    }

    /// Sets the connection name that the broker's tools show; `nsbridge client` if absent.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets the durations that decide when the client repeats something.
    pub fn timing(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// Connects to the broker.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Incomplete`] without a broker or without keys, [`Error::Keyring`] for a
    /// keyring that cannot be used, and [`Error::Queue`] if the address is wrong or the broker cannot
    /// be reached now. Later losses are repaired by a reconnect.
    pub async fn connect(self) -> Result<Client> {
        let broker = match self.broker.ok_or(Error::Incomplete { what: "broker" })? {
            Source::At(url) => {
                Arc::new(AmqpBroker::new(&url)?.with_timing(self.timing.queue.clone()))
            }
            Source::Given(broker) => broker,
        };
        let keys = match self.keys.ok_or(Error::Incomplete { what: "keyring" })? {
            Source::At(path) => Arc::new(Keyring::load(&path)?),
            Source::Given(keys) => keys,
        };
        Client::connect(broker, keys, &self.name, self.timing).await
    }
}

impl fmt::Debug for ClientBuilder {
    /// Leaves out the address, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
