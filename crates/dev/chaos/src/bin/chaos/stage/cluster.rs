//! Nodes of a cluster, its connections, and where its queues are.

use std::sync::MutexGuard;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lapin::options::QueueDeleteOptions;
use nsbridge_protocol::Priority;
use nsbridge_protocol::topology::{
    RETRY_TIERS, dead_queue, model_queue, request_queue, retry_queue,
};
use nsbridge_testkit::Proxy;
use nsbridge_testkit::rabbit::Cluster;

use super::Stage;
use crate::journal::{Line, What};
use crate::servers::{NODES, connect};

/// Time within which the members of a quorum queue run again after their node has started.
const WHOLE_WITHIN: Duration = Duration::from_secs(90);

const LOOK_EVERY: Duration = Duration::from_millis(500);

impl Stage {
    fn cluster(&self) -> Result<MutexGuard<'_, Cluster>> {
        self.servers.cluster()
    }

    /// Returns a node by chance.
    pub(crate) fn any_node(&mut self) -> usize {
        self.random.between(0, NODES - 1)
    }

    /// Kills nodes, one right after the other.
    pub(crate) fn kill_nodes(&self, nodes: &[usize]) -> Result<()> {
        for node in nodes {
            self.fault("kill", &format!("node {node}"))?;
            self.cluster()?.nodes()[*node].kill()?;
        }
        Ok(())
    }

    /// Starts these nodes again, all at once.
    pub(crate) fn launch_nodes(&self, nodes: &[usize]) -> Result<()> {
        self.cluster()?.launch(nodes)
    }

    /// Drains a node, stops it and starts it again, as for an upgrade.
    pub(crate) fn upgrade_node(&self, node: usize) -> Result<()> {
        self.fault("upgrade", &format!("node {node}"))?;
        let mut cluster = self.cluster()?;
        let node = &mut cluster.nodes()[node];
        node.drain()?;
        node.restart()
    }

    /// Waits until the model's queue has its members on all nodes, all of which run, and returns the
    /// node that leads it.
    pub(crate) fn until_whole(&self) -> Result<usize> {
        let (queue, began) = (model_queue(&self.model), Instant::now());
        loop {
            let state = self.cluster()?.queue(&queue, 0)?;
            ensure!(state.members == NODES, "{queue} has {} members, not {NODES}", state.members);
            if let Some(leader) = state.home.filter(|_| state.online == NODES) {
                return Ok(leader);
            }
            ensure!(began.elapsed() < WHOLE_WITHIN, "a member of {queue} does not run: {state:?}");
            sleep(LOOK_EVERY);
        }
    }

    /// Returns the number of requests that the broker has confirmed to the client.
    pub(crate) fn confirmed(&mut self) -> Result<usize> {
        self.follow.read()?;
        let is_confirmed = |line: &&Line| matches!(line.what, What::Asked { .. });
        Ok(self.follow.lines.iter().filter(is_confirmed).count())
    }

    /// Returns the number of connections to each node.
    pub(super) fn connections(&self) -> Vec<usize> {
        self.proxies.iter().map(|proxy| proxy.names().len()).collect()
    }

    /// Ends the connections to these nodes in the middle of what they transfer next.
    pub(crate) fn tear(&self, nodes: &[usize]) -> Result<()> {
        self.fault("tear", &format!("connections to nodes {nodes:?}"))?;
        nodes.iter().for_each(|node| self.proxies[*node].tear());
        Ok(())
    }

    /// Refuses connections to all nodes for this long, and ends those that there are.
    pub(crate) fn refuse_for(&self, time: Duration) -> Result<()> {
        self.fault("refuse", "connections to all nodes")?;
        self.proxies.iter().for_each(Proxy::refuse);
        self.proxies.iter().for_each(Proxy::cut);
        sleep(time);
        self.proxies.iter().for_each(Proxy::accept);
        Ok(())
    }

    /// Adds an address that leads to a node, without a proxy, whose certificate is for another name.
    pub(crate) fn add_misnamed_address(&mut self) -> Result<()> {
        let listener = self.cluster()?.nodes()[0].tls_addr();
        self.addresses.urls.push(format!("amqps://guest:guest@{listener}/%2f"));
        Ok(())
    }

    /// Deletes the queues of the model, which takes two nodes. A node that starts with those of all rounds would take long.
    pub(super) async fn delete_queues(&self) -> Result<()> {
        let mut queues = vec![dead_queue(&self.model)];
        for priority in Priority::ALL {
            queues.push(request_queue(&self.model, priority));
            queues.extend(RETRY_TIERS.map(|tier| retry_queue(&self.model, priority, tier)));
        }
        let connection = connect(&self.url, "chaos").await?;
        let channel = connection.create_channel().await?;
        for queue in queues {
            channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        }
        Ok(connection.close(200, "done".into()).await?)
    }
}
