//! Faults of a cluster of three nodes over TLS. All addresses are known to workers and clients, and the
//! queues of the model have a member on each node.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::plan::Ask;
use crate::servers::NODES;
use crate::stage::Stage;

/// Time limit of a request, in milliseconds. A node takes tens of seconds to start on a busy machine.
const LIMIT_MS: u64 = 240_000;

/// Time after which the confirms that were sent before a kill have arrived.
const CONFIRMS_UNDERWAY: Duration = Duration::from_secs(1);

/// Workers of a round: more than nodes have to share, since each begins with a node by chance.
const WORKERS: usize = 3;

/// Time limit of a request whose reply queue is lost. A client that does not know of the loss enqueues
/// the request again after 90 s, which is too late.
const REPLIES_LOST_LIMIT_MS: u64 = 95_000;

/// Starts workers and a client with four streams, and with short requests that come one by one
/// meanwhile. Returns the streams, and the node that leads the model's queue.
fn begin(stage: &mut Stage, stream: &Ask) -> Result<(Vec<usize>, usize)> {
    let streams = stage.ask_for(4, stream);
    for i in 0..8 {
        let short = Ask::new(20, 20).after(1000 + i * 2000).within(stream.timeout_ms);
        stage.ask(short.insists());
    }
    stage.step_timeout = Duration::from_millis(LIMIT_MS);
    stage.start_workers(WORKERS)?;
    let leader = stage.until_whole()?;
    stage.start_client()?;
    // Without the wire tap, a worker notices that the reply queue is gone.
    if stage.random.between(0, 1) == 0 {
        stage.stop_listening();
    }
    Ok((streams, leader))
}

fn until_in_the_middle(stage: &mut Stage, streams: &[usize]) -> Result<()> {
    let watched = streams[stage.random.between(0, streams.len() - 1)];
    let moment = stage.random.between(10, 150);
    stage.until_piece(watched, moment)
}

/// Kills the node that the client has begun with, which has its reply queue. Starts the node again once
/// the client has enqueued its requests again, with another reply queue.
pub(super) fn node_killed(stage: &mut Stage) -> Result<()> {
    stage.plan.rules.asked_again = 1;
    stage.plan.rules.resumed = 1;
    let (streams, _) = begin(stage, &Ask::new(500, 20).within(REPLIES_LOST_LIMIT_MS))?;
    let node = stage.node_of_replies.context("the client has no connection to a node")?;
    until_in_the_middle(stage, &streams)?;
    stage.kill_nodes(&[node])?;
    stage.until_over(streams[0])?;
    stage.launch_nodes(&[node])
}

/// Kills the node that leads the model's queue. It does not come back before the next round.
pub(super) fn leader_killed(stage: &mut Stage) -> Result<()> {
    let (streams, leader) = begin(stage, &Ask::new(500, 20).within(LIMIT_MS))?;
    until_in_the_middle(stage, &streams)?;
    stage.kill_nodes(&[leader])
}

/// Kills two nodes. Requests that come meanwhile, one every 2 s, are refused or wait until one of them is
/// back.
pub(super) fn minority(stage: &mut Stage) -> Result<()> {
    let (streams, _) = begin(stage, &Ask::new(500, 20).within(LIMIT_MS))?;
    let survivor = stage.any_node();
    until_in_the_middle(stage, &streams)?;
    let killed = [(survivor + 1) % NODES, (survivor + 2) % NODES];
    stage.kill_nodes(&killed)?;
    sleep(CONFIRMS_UNDERWAY);
    let confirmed = stage.confirmed()?;
    stage.pause(4000, 8000);
    ensure!(stage.confirmed()? == confirmed, "one node of three has confirmed a request");
    stage.launch_nodes(&killed)?;
    stage.until_whole().map(drop)
}

/// Drains, stops and starts one node after the other. Each waits until the one before it is a member of
/// the model's queue again.
pub(super) fn rolling_upgrade(stage: &mut Stage) -> Result<()> {
    let (streams, _) = begin(stage, &Ask::new(2500, 20).within(LIMIT_MS))?;
    until_in_the_middle(stage, &streams)?;
    let first = stage.any_node();
    for node in (0..NODES).map(|place| (first + place) % NODES) {
        stage.upgrade_node(node)?;
        stage.until_whole()?;
    }
    Ok(())
}

/// Ends TLS connections in the middle of a record. At last all are refused for a while, so that each
/// process tries all addresses, also the one whose certificate has another name.
pub(super) fn tls_cut(stage: &mut Stage) -> Result<()> {
    stage.add_misnamed_address()?;
    stage.plan.rules.taken_up = 1;
    let (streams, _) = begin(stage, &Ask::new(500, 20).within(LIMIT_MS))?;
    for _ in 0..3 {
        until_in_the_middle(stage, &streams)?;
        let node = stage.any_node();
        stage.tear(&[node])?;
        stage.pause(500, 1500);
    }
    stage.tear(&[0, 1, 2])?;
    stage.pause(500, 1500);
    stage.refuse_for(Duration::from_secs(1))?;
    stage.until_said("w1.0", "certificate not valid for name")
}
