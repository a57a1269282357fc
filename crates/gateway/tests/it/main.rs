//! Gateway with a worker in one process, on the memory broker or RabbitMQ, over real sockets.

#![expect(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod abuse;
mod batches;
mod classes;
mod clients;
mod ends;
mod facts;
mod handler;
mod http;
mod judge;
mod judges;
mod limits;
mod metrics;
mod place;
mod refusals;
mod relay;
mod replicas;
mod retries;
mod snapshots;
mod starts;
mod tokens;
mod traces;
