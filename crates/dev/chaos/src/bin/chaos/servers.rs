//! RabbitMQ of a lane's rounds: one node, or a cluster over TLS.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use lapin::{Connection, ConnectionProperties};
use nsbridge_testkit::Rabbit;
use nsbridge_testkit::rabbit::{Authority, Cluster};

/// Number of nodes of a cluster, and of the members of its quorum queues.
pub(crate) const NODES: usize = 3;

/// Kind of the broker that a scenario is played on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A node that rounds share at the same time.
    SharedNode,
    /// A node of one round at a time.
    OwnNode,
    /// A cluster of one round at a time.
    Cluster,
}

/// Running broker.
#[derive(Clone, Debug)]
pub(crate) enum Servers {
    Node(Arc<Mutex<Rabbit>>),
    Cluster(Arc<Mutex<Cluster>>),
}

impl Servers {
    pub(crate) fn start(kind: Kind) -> Result<Self> {
        Ok(match kind {
            Kind::SharedNode | Kind::OwnNode => Self::Node(Arc::new(Mutex::new(Rabbit::start()?))),
            Kind::Cluster => Self::Cluster(Arc::new(Mutex::new(Cluster::over_tls(NODES)?))),
        })
    }

    /// Starts the nodes that the round before has left stopped.
    pub(crate) fn heal(&self) -> Result<()> {
        match self {
            Self::Node(_) => Ok(()),
            Self::Cluster(cluster) => lock(cluster).heal(),
        }
    }

    pub(crate) fn node(&self) -> Result<MutexGuard<'_, Rabbit>> {
        match self {
            Self::Node(node) => Ok(lock(node)),
            Self::Cluster(_) => bail!("the scenario is played on a cluster, not on one node"),
        }
    }

    pub(crate) fn cluster(&self) -> Result<MutexGuard<'_, Cluster>> {
        match self {
            Self::Node(_) => bail!("the scenario is played on one node, not on a cluster"),
            Self::Cluster(cluster) => Ok(lock(cluster)),
        }
    }

    /// Returns the URLs of the nodes for the driver, without TLS, separated by commas.
    pub(crate) fn urls(&self) -> String {
        match self {
            Self::Node(node) => lock(node).url(),
            Self::Cluster(cluster) => lock(cluster).urls(),
        }
    }

    /// Returns the listeners that workers and clients use.
    pub(crate) fn listeners(&self) -> Vec<SocketAddr> {
        match self {
            Self::Node(node) => vec![lock(node).addr()],
            Self::Cluster(cluster) => lock(cluster).nodes().iter().map(Rabbit::tls_addr).collect(),
        }
    }

    fn ca_file(&self) -> Option<PathBuf> {
        match self {
            Self::Node(_) => None,
            Self::Cluster(cluster) => lock(cluster).ca_file(),
        }
    }

    /// Returns the addresses for workers and clients, by way of proxies at these addresses.
    pub(crate) fn addresses(&self, proxies: &[SocketAddr]) -> Addresses {
        let ca_file = self.ca_file();
        let url = |proxy: &SocketAddr| match &ca_file {
            None => format!("amqp://guest:guest@{proxy}/%2f"),
            Some(_) => format!("amqps://guest:guest@{}:{}/%2f", Authority::HOST, proxy.port()),
        };
        Addresses { urls: proxies.iter().map(url).collect(), ca_file }
    }
}

/// Addresses of the broker for workers and clients.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    /// URLs without parameters.
    pub(crate) urls: Vec<String>,
    /// Certificate of the nodes' authority; `None` without TLS.
    pub(crate) ca_file: Option<PathBuf>,
}

impl Addresses {
    /// Returns all URLs as one text, with these parameters.
    pub(crate) fn text(&self, parameters: &str) -> String {
        let ca_file = self.ca_file.iter().map(|file| format!("cacertfile={}", file.display()));
        let parameters = ca_file.chain((!parameters.is_empty()).then(|| parameters.to_owned()));
        let parameters = parameters.collect::<Vec<_>>().join("&");
        let question = if parameters.is_empty() { "" } else { "?" };
        let url = |url: &String| format!("{url}{question}{parameters}");
        self.urls.iter().map(url).collect::<Vec<_>>().join(",")
    }

    /// Returns the table `[broker]` of a configuration, whose URLs have these parameters.
    pub(crate) fn table(&self, parameters: &str) -> String {
        let urls: Vec<String> =
            self.urls.iter().map(|url| format!("\"{url}?{parameters}\"")).collect();
        let ca_file = self.ca_file.iter().map(|file| format!("ca_file = \"{}\"\n", file.display()));
        format!("[broker]\nurls = [{}]\n{}", urls.join(", "), ca_file.collect::<String>())
    }
}

/// Connects to the first of these URLs, separated by commas, that can be reached.
pub(crate) async fn connect(urls: &str, name: &str) -> Result<Connection> {
    let mut failed = None;
    for url in urls.split(',') {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        match Connection::connect(url, properties).await {
            Ok(connection) => return Ok(connection),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.context("the broker has no node")?.into())
}

fn lock<T>(server: &Mutex<T>) -> MutexGuard<'_, T> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}
