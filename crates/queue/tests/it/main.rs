//! Integration tests of the queue backends: RabbitMQ and memory.

#![expect(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod amqp;
mod cluster;
mod conformance;
mod memory;
mod reconnect;
mod tls;
