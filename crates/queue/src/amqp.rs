//! RabbitMQ backend, based on lapin.

mod address;
mod connection;
mod consumer;
mod convert;
mod fault;
pub(crate) mod frame_filter;
mod io;
mod lifetime;
mod publisher;
mod returns;
mod topology;
mod version;

use std::fmt;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use lapin::ConnectionProperties;
use lapin::uri::{AMQPScheme, AMQPUri};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::error::Result;
use crate::limits::Limits;
use crate::timing::Timing;
use crate::{Broker, Connection};

use address::Address;
use connection::AmqpConnection;
use frame_filter::Bodies;
use io::Io;
use lifetime::Settings;

/// First bytes that a client sends (AMQP 0-9-1, 4.2.2). A broker answers them.
const PROTOCOL_HEADER: &[u8] = b"AMQP\0\0\x09\x01";

/// RabbitMQ broker, reached over AMQP 0-9-1.
///
/// A separate thread serves sockets and heartbeats, so that a caller that blocks every thread of
/// its runtime does not lose the connection. The thread ends when the broker and its last
/// connection are dropped.
///
/// ```
/// use nsbridge_queue::{AmqpBroker, Error};
///
/// let broker = AmqpBroker::new("amqp://user:password@localhost:5672/%2f")?;
/// assert!(!format!("{broker:?}").contains("password"));
/// // A password must not cross the network in the clear.
/// let remote = AmqpBroker::new("amqp://user:password@broker.example:5672/%2f");
/// assert!(matches!(remote, Err(Error::Plaintext { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct AmqpBroker {
    address: Arc<Address>,
    limits: Limits,
    timing: Timing,
    io: Arc<Io>,
    /// True if the broker sets `x-acquired-count`; empty until that is known.
    counts_acquired: Arc<OnceLock<bool>>,
}

impl AmqpBroker {
    /// Creates a broker at `url`: `amqp://user:password@host:5672/%2f`, or `amqps://` for TLS.
    ///
    /// Opens no connection yet. `?heartbeat=30` sets the heartbeat in seconds; the default is 10.
    /// `?allow_plaintext=true` allows `amqp://` to another machine.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Address`](crate::Error::Address) if `url` is not the address of a broker,
    /// [`Error::Plaintext`](crate::Error::Plaintext) if it leads to another machine without TLS,
    /// and [`Error::Lost`](crate::Error::Lost) if the thread cannot be started.
    pub fn new(url: &str) -> Result<Self> {
        Self::with_limits(url, Limits::default())
    }

    /// Creates a broker that declares its queues with other limits than the protocol's, for tests.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`new`](Self::new).
    pub fn with_limits(url: &str, limits: Limits) -> Result<Self> {
        let address = Arc::new(Address::parse(url)?);
        let io = Arc::new(Io::start()?);
        let (timing, counts_acquired) = (Timing::default(), Arc::default());
        Ok(Self { address, limits, timing, io, counts_acquired })
    }

    /// Sets the time limits of attempts and the polling intervals of connections.
    #[must_use]
    pub fn with_timing(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// Sets the maximum size of an AMQP frame in bytes, which is 128 KiB by default and at least 8 KiB for
    /// RabbitMQ. A connection has buffers of 64 frames, so a program with many connections chooses
    /// a small one. Larger messages are divided.
    #[must_use]
    pub fn with_frame_max(self, bytes: u32) -> Self {
        Self { address: Arc::new(self.address.with_frame_max(bytes)), ..self }
    }

    fn properties(name: &str) -> ConnectionProperties {
        // lapin's automatic recovery stays off: it would redeliver running jobs without the
        // worker's knowledge.
        ConnectionProperties::default().with_connection_name(name.into())
    }

    /// Queries the broker's version once, and returns true if it sets `x-acquired-count`.
    ///
    /// A missing answer is not an error: the next connection attempt shows whether the broker is
    /// there.
    async fn counts_acquired(&self) -> bool {
        if let Some(known) = self.counts_acquired.get() {
            return *known;
        }
        let (uri, tls, limit) = (self.address.uri(), self.address.tls(), self.timing.version_limit);
        let asking =
            async move { tokio::time::timeout(limit, version::counts_acquired(&uri, &tls)).await };
        match self.io.run(asking).await {
            Ok(Ok(Ok(knows))) => *self.counts_acquired.get_or_init(|| knows),
            _ => false,
        }
    }

    async fn open(&self, name: &str) -> Result<(lapin::Connection, Arc<Bodies>)> {
        let (uri, properties) = (self.address.uri(), Self::properties(name));
        let tls = self.address.tls().read().map_err(|error| fault::unread(&self.address, error))?;
        let limit = self.timing.connect_limit;
        // lapin binds itself to the runtime that it is called on, so it is called on the I/O
        // thread's runtime.
        let opening = async move {
            tokio::time::timeout(limit, frame_filter::connect(uri, tls, properties)).await
        };
        let opened = self.io.run(opening).await?;
        match opened {
            Ok(Ok(opened)) => Ok(opened),
            Ok(Err(error)) => Err(fault::connecting(&self.address, error)),
            Err(_) => Err(fault::silent(&self.address, limit)),
        }
    }
}

/// Opens a socket and waits for the broker's first byte, because a proxy's port is open even
/// without a broker behind it.
///
/// With TLS, an open port is taken as sufficient.
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
            timing: self.timing.clone(),
            counts_acquired: self.counts_acquired().await,
            io: Arc::clone(&self.io),
        };
        Ok(Arc::new(AmqpConnection::new(connection, settings)))
    }

    async fn listens(&self) -> bool {
        let (uri, limit) = (self.address.uri(), self.timing.probe_limit);
        let knocking = async move { tokio::time::timeout(limit, knock(uri)).await };
        matches!(self.io.run(knocking).await, Ok(Ok(Ok(()))))
    }
}

impl fmt::Debug for AmqpBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AmqpBroker").field(&self.address).finish()
    }
}
