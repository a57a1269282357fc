//! Private cluster of RabbitMQ nodes.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::authority::Authority;
use super::node::{Node, start_mapper};
use super::ports::Ports;
use super::{Config, Place, Rabbit, wait_for};

/// Time within which the port mapper listens.
const MAP_WITHIN: Duration = Duration::from_secs(20);

/// Name of the file with the certificate of the authority.
const CA_FILE: &str = "ca.pem";

/// Running cluster of RabbitMQ nodes on this machine. Dropping it kills the nodes and removes their files.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Rabbit>,
    mapper: Child,
    /// Ports of the port mapper.
    _ports: Ports,
    /// Folder with the certificate of the nodes' authority; `None` without TLS.
    files: Option<TempDir>,
}

/// Queue, as a node of its cluster reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// Index of the node that leads a quorum queue, or that has a classic one; `None` while no node
    /// does.
    pub home: Option<usize>,
    /// Number of nodes that are members of a quorum queue.
    pub members: usize,
    /// Number of members that run.
    pub online: usize,
}

impl Cluster {
    /// Starts this number of nodes as one cluster.
    ///
    /// # Errors
    ///
    /// Returns an error if RabbitMQ is not installed, or if a node does not start.
    pub fn start(count: usize) -> Result<Self> {
        Self::launched(count, None)
    }

    /// Starts this number of nodes as one cluster whose nodes have TLS listeners too.
    ///
    /// # Errors
    ///
    /// Returns an error if RabbitMQ is not installed, or if a node does not start.
    pub fn over_tls(count: usize) -> Result<Self> {
        Self::launched(count, Some(&Authority::new()?))
    }

    fn launched(count: usize, authority: Option<&Authority>) -> Result<Self> {
        let (place, ports) = (Place::find()?, Ports::take()?);
        let mapper_port = ports.numbers[1];
        let mapper = start_mapper(&place, mapper_port)?;
        let mut cluster = Self { nodes: Vec::new(), mapper, _ports: ports, files: None };
        if let Some(authority) = authority {
            let files = tempfile::tempdir().context("making the folder of certificates")?;
            fs::write(files.path().join(CA_FILE), authority.pem())?;
            cluster.files = Some(files);
        }
        // The port mapper of the first node must not come first, since it ends with its node.
        let address = (Ipv4Addr::LOCALHOST, mapper_port);
        let maps = wait_for(MAP_WITHIN, || TcpStream::connect(address).is_ok());
        ensure!(maps, "the port mapper of RabbitMQ does not listen within {MAP_WITHIN:?}");
        let mut config = Config::default();
        if place.version().is_some_and(|version| version >= (4, 3)) {
            // As the manual recommends. Earlier versions return the messages at once, and refuse the key.
            config.conf.push("consumer_disconnected_timeout = 2000".to_owned());
        }
        for number in 0..count {
            let node = Node::prepare(&place, &config, Some(mapper_port), authority)?;
            if number == 0 {
                // The others join the first one.
                let name = node.name();
                config
                    .conf
                    .push("cluster_formation.peer_discovery_backend = classic_config".into());
                config.conf.push(format!("cluster_formation.classic_config.nodes.1 = {name}"));
            }
            cluster.nodes.push(Rabbit::of(node));
        }
        cluster.launch(&[0])?;
        cluster.launch(&(1..count).collect::<Vec<_>>())?;
        Ok(cluster)
    }

    /// Starts these nodes again, all at once, with the data that they have.
    ///
    /// # Errors
    ///
    /// Returns an error if a node does not come back within 90 seconds.
    pub fn launch(&mut self, nodes: &[usize]) -> Result<()> {
        nodes.iter().try_for_each(|node| self.nodes[*node].spawn())?;
        nodes.iter().try_for_each(|node| self.nodes[*node].wait_until_up())
    }

    /// Returns the AMQP URLs of the nodes' listeners without TLS, separated by commas.
    pub fn urls(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(Rabbit::url).collect();
        urls.join(",")
    }

    /// Returns the file with the certificate of the nodes' authority; `None` without TLS.
    pub fn ca_file(&self) -> Option<PathBuf> {
        self.files.as_ref().map(|files| files.path().join(CA_FILE))
    }

    /// Returns the nodes.
    pub fn nodes(&mut self) -> &mut [Rabbit] {
        &mut self.nodes
    }

    /// Starts all nodes that are down.
    ///
    /// # Errors
    ///
    /// Returns an error if a node does not come back within 90 seconds.
    pub fn heal(&mut self) -> Result<()> {
        let down = |node: &usize| self.nodes[*node].keeper.is_none();
        let down: Vec<usize> = (0..self.nodes.len()).filter(down).collect();
        self.launch(&down)
    }

    /// Returns the state of a queue, asked at the node `at`.
    ///
    /// # Errors
    ///
    /// Returns an error if the node does not answer, or if there is no such queue.
    pub fn queue(&self, name: &str, at: usize) -> Result<QueueState> {
        let items = ["list_queues", "--quiet", "name", "pid", "leader", "members", "online"];
        let told = self.nodes[at].ctl(&items)?;
        let line = told.lines().find(|line| line.split('\t').next() == Some(name));
        let line = line.with_context(|| format!("there is no queue {name}: {told}"))?;
        let mut fields = line.split('\t').skip(1).map(str::trim);
        let mut next = || fields.next().unwrap_or_default();
        let (process, leader, members, online) = (next(), next(), next(), next());
        // A classic queue has a process, as <node.1.2.3>, and no leader.
        let leads = |node: &Rabbit| match leader {
            "" => process.starts_with(&format!("<{}.", node.node.name())),
            leader => leader == node.node.name(),
        };
        let count = |nodes: &str| nodes.matches('@').count();
        let home = self.nodes.iter().position(leads);
        Ok(QueueState { home, members: count(members), online: count(online) })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        // The closed pipe makes the shell kill the port mapper.
        drop(self.mapper.stdin.take());
        let _ = self.mapper.wait();
    }
}
