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

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::future::join_all;
use lapin::ConnectionProperties;
use lapin::types::{AMQPValue, FieldTable};
use lapin::uri::{AMQPScheme, AMQPUri};
use nsbridge_base::random::random;
use nsbridge_protocol::ModelName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::timing::Timing;
use crate::{Broker, Connection};

use address::Address;
use connection::AmqpConnection;
use frame_filter::Filter;
use io::Io;
use lifetime::Settings;

/// First RabbitMQ version that counts nacks in `x-acquired-count` and nowhere else.
const COUNTS_ACQUIRED: (u32, u32) = (4, 3);

/// First bytes that a client sends (AMQP 0-9-1, 4.2.2). A broker answers them.
const PROTOCOL_HEADER: &[u8] = b"AMQP\0\0\x09\x01";

/// RabbitMQ broker, reached over AMQP 0-9-1: one node, or the nodes of a cluster.
///
/// Connections to a cluster begin with a node by chance. Where a node cannot be reached, the next one
/// is tried, and further connections go there too.
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
    /// Addresses of the nodes, at least one.
    nodes: Arc<[Address]>,
    /// Index of the node that connections go to first.
    node: Arc<AtomicUsize>,
    limits: Limits,
    timing: Timing,
    io: Arc<Io>,
}

impl AmqpBroker {
    /// Creates a broker at `url`: `amqp://user:password@host:5672/%2f`, or `amqps://` for TLS.
    ///
    /// Opens no connection yet. `?heartbeat=30` sets the heartbeat in seconds; the default is 10.
    /// `?allow_plaintext=true` allows `amqp://` to another machine. The addresses of several nodes of
    /// one cluster are separated by commas.
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
        let nodes: Arc<[Address]> = Address::parse_all(url)?.into();
        let node = Arc::new(AtomicUsize::new((random() % nodes.len() as u64) as usize));
        let io = Arc::new(Io::start()?);
        Ok(Self { nodes, node, limits, timing: Timing::default(), io })
    }

    /// Returns the queues of a model with the arguments that this broker declares them with.
    pub fn declared_queues(&self, model: &ModelName) -> Vec<DeclaredQueue> {
        let queues = topology::queues_of(model, &self.limits).into_iter();
        queues.map(|(name, table)| DeclaredQueue { name, arguments: arguments(&table) }).collect()
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
        let nodes = self.nodes.iter().map(|node| node.with_frame_max(bytes)).collect();
        Self { nodes, ..self }
    }

    fn properties(name: &str) -> ConnectionProperties {
        // lapin's automatic recovery stays off: it would redeliver running jobs without the
        // worker's knowledge.
        ConnectionProperties::default().with_connection_name(name.into())
    }

    /// Opens a connection to the first node that can be reached.
    ///
    /// # Errors
    ///
    /// Returns the error of a node that refused the login, or else that of the node tried last.
    async fn open(&self, name: &str) -> Result<Filter> {
        let (first, count) = (self.node.load(Ordering::Relaxed), self.nodes.len());
        let mut failed = None;
        for place in (0..count).map(|place| (first + place) % count) {
            match self.open_node(&self.nodes[place], name).await {
                Ok(opened) => {
                    self.node.store(place, Ordering::Relaxed);
                    return Ok(opened);
                }
                Err(error) if count == 1 => return Err(error),
                Err(error) => {
                    let (node, error_chain) = (&self.nodes[place], nsbridge_base::chain(&error));
                    tracing::warn!(%node, error = error_chain, "no connection to this node of the broker");
                    if !matches!(failed, Some(Error::Denied { .. })) {
                        failed = Some(error);
                    }
                }
            }
        }
        Err(failed.unwrap_or_else(|| Error::Lost { reason: "it has no node".to_owned() }))
    }

    async fn open_node(&self, node: &Address, name: &str) -> Result<Filter> {
        let (uri, properties) = (node.uri(), Self::properties(name));
        let tls = node.tls().read().map_err(|error| fault::unread(node, error))?;
        let limit = self.timing.connect_limit;
        // lapin binds itself to the runtime that it is called on, so it is called on the I/O
        // thread's runtime.
        let opening = async move {
            tokio::time::timeout(limit, frame_filter::connect(uri, tls, properties)).await
        };
        let opened = self.io.run(opening).await?;
        match opened {
            Ok(Ok(opened)) => Ok(opened),
            Ok(Err(error)) => Err(fault::connecting(node, error)),
            Err(_) => Err(fault::silent(node, limit)),
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

/// Queue as a broker is asked to declare it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeclaredQueue {
    /// Name of the queue.
    pub name: String,
    /// Arguments by their names, such as `x-max-length-bytes`.
    pub arguments: BTreeMap<String, Argument>,
}

/// Argument of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Argument {
    /// Text, such as the type of the queue.
    Text(String),
    /// Number, such as a limit in bytes.
    Number(i64),
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// Converts the arguments of the protocol's queues, which are texts and numbers.
fn arguments(table: &FieldTable) -> BTreeMap<String, Argument> {
    let argument = |value: &AMQPValue| match value {
        AMQPValue::LongString(text) => {
            Some(Argument::Text(String::from_utf8_lossy(text.as_bytes()).into_owned()))
        }
        AMQPValue::LongLongInt(number) => Some(Argument::Number(*number)),
        _ => None,
    };
    let known = table.inner().iter();
    known.filter_map(|(name, value)| Some((name.to_string(), argument(value)?))).collect()
}

#[async_trait]
impl Broker for AmqpBroker {
    async fn connect(&self, name: &str) -> Result<Arc<dyn Connection>> {
        let Filter { connection, bodies, version } = self.open(name).await?;
        let settings = Settings {
            bodies,
            limits: self.limits,
            timing: self.timing.clone(),
            counts_acquired: version.is_some_and(|version| version >= COUNTS_ACQUIRED),
            io: Arc::clone(&self.io),
        };
        Ok(Arc::new(AmqpConnection::new(connection, settings)))
    }

    async fn listens(&self) -> bool {
        let limit = self.timing.probe_limit;
        let knocks: Vec<_> =
            self.nodes.iter().map(|node| tokio::time::timeout(limit, knock(node.uri()))).collect();
        let knocked = self.io.run(join_all(knocks)).await;
        knocked.is_ok_and(|nodes| nodes.iter().any(|node| matches!(node, Ok(Ok(())))))
    }
}

impl fmt::Debug for AmqpBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AmqpBroker").field(&self.nodes).finish()
    }
}

#[cfg(test)]
mod tests {
    //! Tests of a connection's broker.

    use super::AmqpBroker;

    #[tokio::test]
    async fn a_real_broker_tells_its_version() {
        let broker = AmqpBroker::new(&nsbridge_testkit::amqp_url()).unwrap();
        let version = broker.open("version").await.unwrap().version;
        assert!(version.is_some_and(|version| version >= (3, 8)), "{version:?}");
    }
}
