//! RabbitMQ, through lapin.

mod address;
mod connection;
mod consumer;
mod convert;
mod fault;
mod io;
mod life;
mod publisher;
mod returns;
pub(crate) mod shallow;
mod topology;
mod version;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use lapin::ConnectionProperties;
use lapin::uri::{AMQPScheme, AMQPUri};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Broker, Connection, Limits, Result};

use address::Address;
use connection::AmqpConnection;
use io::Io;
use life::Settings;
use shallow::Bodies;

/// A connection attempt gives up after this long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A look at whether the broker listens gives up after this long.
const KNOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// A client's first bytes (AMQP 0-9-1, 4.2.2), which a broker answers.
const PROTOCOL_HEADER: &[u8] = b"AMQP\0\0\x09\x01";

/// The question for the broker's version gives up after this long.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// A RabbitMQ broker, reached over AMQP 0-9-1.
///
/// It runs a thread of its own for sockets and heartbeats, so that a caller who blocks every
/// thread of its runtime does not lose the connection. The thread ends with the last connection.
#[derive(Clone)]
pub struct AmqpBroker {
    address: Arc<Address>,
    limits: Limits,
    io: Arc<Io>,
    /// Whether the broker sets `x-acquired-count`, once that is known.
    counts_acquired: Arc<OnceLock<bool>>,
}

impl AmqpBroker {
    /// A broker at `url`: `amqp://user:password@host:5672/%2f`, or `amqps://` for TLS.
    ///
    /// Nothing is connected yet. `?heartbeat=30` sets the heartbeat, in seconds; it is 10 without.
    /// `?allow_plaintext=true` allows `amqp://` to another machine.
    ///
    /// # Errors
    ///
    /// [`Error::Address`](crate::Error::Address) if `url` is not the address of a broker,
    /// [`Error::Plaintext`](crate::Error::Plaintext) if it leads to another machine without TLS.
    pub fn new(url: &str) -> Result<Self> {
        Self::with_limits(url, Limits::default())
    }

    /// The same, with queues that are declared with other limits than the protocol's: for tests.
    ///
    /// # Errors
    ///
    /// [`Error::Address`](crate::Error::Address) if `url` is not the address of a broker.
    pub fn with_limits(url: &str, limits: Limits) -> Result<Self> {
        let address = Arc::new(Address::parse(url)?);
        let io = Arc::new(Io::start()?);
        Ok(Self { address, limits, io, counts_acquired: Arc::default() })
    }

    fn properties(name: &str) -> ConnectionProperties {
        // Recovery behind our back would hand out running jobs a second time: it stays off.
        ConnectionProperties::default().with_connection_name(name.into())
    }

    /// Asks the broker for its version, once. An answer that does not come is no failure: whoever
    /// connects next sees for itself whether the broker is there.
    async fn counts_acquired(&self) -> bool {
        if let Some(known) = self.counts_acquired.get() {
            return *known;
        }
        let uri = self.address.uri();
        let asking =
            async move { tokio::time::timeout(ASK_TIMEOUT, version::counts_acquired(&uri)).await };
        match self.io.run(asking).await {
            Ok(Ok(Ok(knows))) => *self.counts_acquired.get_or_init(|| knows),
            _ => false,
        }
    }

    async fn open(&self, name: &str) -> Result<(lapin::Connection, Arc<Bodies>)> {
        let (uri, properties) = (self.address.uri(), Self::properties(name));
        // lapin binds itself to the runtime that it is called on, which is why it is called there.
        let opening = async move {
            tokio::time::timeout(CONNECT_TIMEOUT, shallow::connect(uri, properties)).await
        };
        let opened = self.io.run(opening).await?;
        match opened {
            Ok(Ok(opened)) => Ok(opened),
            Ok(Err(error)) => Err(fault::connecting(&self.address, error)),
            Err(_) => Err(fault::silent(&self.address, CONNECT_TIMEOUT)),
        }
    }
}

/// Opens a socket and waits for the broker's first byte: the port of a proxy is open without it.
/// Behind TLS, an open port must do.
async fn knock(uri: AMQPUri) -> std::io::Result<()> {
    let address = (uri.authority.host.as_str(), uri.authority.port);
    let mut socket = TcpStream::connect(address).await?;
    if uri.scheme == AMQPScheme::AMQP {
        socket.write_all(PROTOCOL_HEADER).await?;
        socket.read_u8().await?;
    }
    Ok(())
}

#[async_trait]
impl Broker for AmqpBroker {
    async fn connect(&self, name: &str) -> Result<Arc<dyn Connection>> {
        let (connection, bodies) = self.open(name).await?;
        let settings = Settings {
            bodies,
            limits: self.limits,
            counts_acquired: self.counts_acquired().await,
            io: Arc::clone(&self.io),
        };
        Ok(Arc::new(AmqpConnection::new(connection, settings)))
    }

    async fn listens(&self) -> bool {
        let uri = self.address.uri();
        let knocking = async move { tokio::time::timeout(KNOCK_TIMEOUT, knock(uri)).await };
        matches!(self.io.run(knocking).await, Ok(Ok(Ok(()))))
    }
}

impl fmt::Debug for AmqpBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AmqpBroker").field(&self.address).finish()
    }
}
