//! `nsbridge plan`: what a fleet asks of its broker.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use nsbridge_protocol::topology::RETRY_TIERS;
use nsbridge_queue::Limits;
use serde::Serialize;

use crate::terminal::{print, print_line};

/// Queues and connections that a fleet has on its broker, for its limits and its size.
///
/// The numbers are those of a fleet at work. Requests that lost a worker have a small queue each until they
/// end, which is not counted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n\
    \x20 nsbridge plan --models 3 --workers 12 --slots 8 --gateways 2 --clients 4 --nodes 3")]
pub(crate) struct Arguments {
    /// Number of models.
    #[arg(long, default_value_t = 1, value_name = "N")]
    models: u64,
    /// Number of workers of all models.
    #[arg(long, default_value_t = 1, value_name = "N")]
    workers: u64,
    /// Replies that a worker computes at once: max_rolling_batch_size + job_queue_size.
    #[arg(long, default_value_t = 8, value_name = "N")]
    slots: u64,
    /// Number of gateways.
    #[arg(long, default_value_t = 0, value_name = "N")]
    gateways: u64,
    /// Number of processes that seal requests themselves, such as API servers with a client.
    #[arg(long, default_value_t = 0, value_name = "N")]
    clients: u64,
    /// Number of `nsbridge proxy` that go through the gateways.
    #[arg(long, default_value_t = 0, value_name = "N")]
    proxies: u64,
    /// Nodes of the broker's cluster. A quorum queue is on each of them, on five at most.
    #[arg(long, default_value_t = 1, value_name = "N")]
    nodes: u64,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

/// Largest number of an option.
const MAX_COUNT: u64 = 1_000_000;

/// Connections of a worker: one consumes, one publishes.
const CONNECTIONS_OF_A_WORKER: u64 = 2;

/// Connections of a client: one for requests, one for replies.
const CONNECTIONS_OF_A_CLIENT: u64 = 2;

/// Connections that a proxy's sessions have at its gateways.
const CONNECTIONS_OF_A_PROXY: u64 = 2;

/// Channels of an idle worker: two classes of requests, control messages, and one that publishes.
const CHANNELS_OF_A_WORKER: u64 = 4;

/// Channels of a connection of a client, and of a proxy's session.
const CHANNELS_OF_A_CLIENT: u64 = 2;

/// Memory of the empty quorum queues of a model on a node, in bytes, as measured on RabbitMQ 3.10.
const QUEUE_BYTES_OF_A_MODEL: u64 = 900_000;

/// Plan of a broker.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Plan {
    /// Queues of requests, retries and dead letters. Each has a replica on each node.
    quorum_queues: u64,
    /// Queues of one process each: replies, and control messages.
    classic_queues: u64,
    connections: u64,
    /// Connections while all workers of a fleet are replaced at once.
    most_connections: u64,
    /// Channels while every place of every worker is busy.
    most_channels: u64,
    /// Memory of the empty queues on each node, in bytes.
    queue_bytes: u64,
    /// Disk on each node that holds all requests and dead letters which the queues take, in bytes.
    most_disk_bytes: u64,
}

impl Plan {
    fn of(arguments: &Arguments) -> Self {
        let Arguments { models, workers, slots, gateways, clients, proxies, .. } = *arguments;
        let classes = 2;
        let retries = RETRY_TIERS.len() as u64;
        let quorum_of_a_model = classes * (1 + retries) + 1;
        let publishing = gateways + clients;
        let connections = CONNECTIONS_OF_A_WORKER * workers
            + CONNECTIONS_OF_A_CLIENT * publishing
            + CONNECTIONS_OF_A_PROXY * proxies;
        let limits = Limits::default();
        let disk_of_a_model = classes
            * (limits.model_queue_bytes + retries * limits.retry_queue_bytes)
            + limits.dead_queue_bytes;
        Self {
            quorum_queues: quorum_of_a_model * models,
            classic_queues: workers + publishing + CONNECTIONS_OF_A_PROXY * proxies,
            connections,
            most_connections: connections + (CONNECTIONS_OF_A_WORKER + 1) * workers,
            most_channels: (CHANNELS_OF_A_WORKER + slots) * workers * 2
                + CHANNELS_OF_A_CLIENT * (publishing + CONNECTIONS_OF_A_PROXY * proxies),
            queue_bytes: QUEUE_BYTES_OF_A_MODEL * models,
            most_disk_bytes: disk_of_a_model * models,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { models, workers, slots, gateways, clients, proxies, nodes, json } = *arguments;
    for (name, count) in [
        ("models", models),
        ("workers", workers),
        ("slots", slots),
        ("gateways", gateways),
        ("clients", clients),
        ("proxies", proxies),
        ("nodes", nodes),
    ] {
        ensure!(count <= MAX_COUNT, "--{name} is {count}: set it to at most {MAX_COUNT}");
    }
    let plan = Plan::of(arguments);
    if json {
        print_line(&serde_json::to_string(&plan)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Plan { quorum_queues, classic_queues, connections, .. } = plan;
    let replicas = nodes.clamp(1, 5);
    let rows = [
        (
            "quorum queues",
            quorum_queues.to_string(),
            "9 of a model: requests, retries, dead letters",
        ),
        (
            "their replicas",
            (quorum_queues * replicas).to_string(),
            "on all nodes; the processes that agree",
        ),
        ("classic queues", classic_queues.to_string(), "one of each worker, gateway and client"),
        ("connections", connections.to_string(), "two of each worker, gateway and client"),
        (
            "in a deployment",
            plan.most_connections.to_string(),
            "while each worker runs twice, and one more of each that starts",
        ),
        ("channels, at most", plan.most_channels.to_string(), "one of each running reply"),
        ("memory of queues", megabytes(plan.queue_bytes), "on each node, without a message"),
        (
            "disk, at most",
            megabytes(plan.most_disk_bytes),
            "on each node, if every queue is filled to its limit",
        ),
    ];
    let width = rows.iter().map(|(_, value, _)| value.len()).max().unwrap_or_default();
    let text: String = rows
        .iter()
        .map(|(name, value, why)| format!("{name:<18} {value:>width$}  {why}\n"))
        .collect();
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}
