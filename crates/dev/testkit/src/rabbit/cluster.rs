//! Private cluster of RabbitMQ nodes.

use std::net::{Ipv4Addr, TcpStream};
use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::node::{Node, start_mapper};
use super::ports::Ports;
use super::{Config, Place, Rabbit, speaks_amqp, wait_for};

/// Time within which the port mapper listens.
const MAP_WITHIN: Duration = Duration::from_secs(20);

/// Time within which a node that has joined listens again.
const JOIN_WITHIN: Duration = Duration::from_secs(60);

/// Running cluster of RabbitMQ nodes on this machine. Dropping it kills the nodes and removes their files.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Rabbit>,
    mapper: Child,
    /// Ports of the port mapper.
    _ports: Ports,
}

impl Cluster {
    /// Starts this number of nodes, and joins them to the first one.
    ///
    /// # Errors
    ///
    /// Returns an error if RabbitMQ is not installed, or if a node does not start or join.
    pub fn start(count: usize) -> Result<Self> {
        Self::with(count, &Config::default())
    }

    /// Starts nodes with additional configuration, and joins them to the first one.
    ///
    /// # Errors
    ///
    /// Returns an error if RabbitMQ is not installed, or if a node does not start or join.
    pub fn with(count: usize, config: &Config) -> Result<Self> {
        let (place, ports) = (Place::find()?, Ports::take()?);
        let mapper_port = ports.numbers[1];
        let mapper = start_mapper(&place, mapper_port)?;
        let mut cluster = Self { nodes: Vec::new(), mapper, _ports: ports };
        // The port mapper of the first node must not come first, since it ends with its node.
        let address = (Ipv4Addr::LOCALHOST, mapper_port);
        let maps = wait_for(MAP_WITHIN, || TcpStream::connect(address).is_ok());
        ensure!(maps, "the port mapper of RabbitMQ does not listen within {MAP_WITHIN:?}");
        for number in 0..count {
            let node = Rabbit::launched(Node::prepare(&place, config, Some(mapper_port))?)?;
            cluster.nodes.push(node);
            cluster.join(number).with_context(|| format!("joining node {number}"))?;
        }
        Ok(cluster)
    }

    fn join(&self, number: usize) -> Result<()> {
        if number == 0 {
            return Ok(());
        }
        let (node, first) = (&self.nodes[number], self.nodes[0].node.name());
        for arguments in [&["stop_app"][..], &["join_cluster", &first], &["start_app"]] {
            node.ctl(arguments)?;
        }
        let listens = wait_for(JOIN_WITHIN, || speaks_amqp(node.addr()));
        ensure!(listens, "it does not listen within {JOIN_WITHIN:?}");
        Ok(())
    }

    /// Returns the AMQP URLs of the nodes, separated by commas.
    pub fn urls(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(Rabbit::url).collect();
        urls.join(",")
    }

    /// Returns the nodes.
    pub fn nodes(&mut self) -> &mut [Rabbit] {
        &mut self.nodes
    }

    /// Returns the index of the node that leads a quorum queue, asked at the node `at`.
    ///
    /// # Errors
    ///
    /// Returns an error if the node does not answer, or if the queue has no leader among the nodes.
    pub fn leader_of(&self, queue: &str, at: usize) -> Result<usize> {
        let told = self.nodes[at].ctl(&["list_queues", "--quiet", "name", "leader"])?;
        let leader = told.lines().find_map(|line| {
            let (name, leader) = line.split_once('\t')?;
            (name == queue).then(|| leader.trim().to_owned())
        });
        let leader = leader.with_context(|| format!("there is no queue {queue}: {told}"))?;
        let place = self.nodes.iter().position(|node| node.node.name() == leader);
        place.with_context(|| format!("the queue {queue} has the leader {leader:?}"))
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
