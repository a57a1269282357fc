//! End-to-end tests of the `nsbridge` binary: real processes, a real broker, the bundled model.

#![expect(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod batch;
mod batches;
mod demo;
mod dev;
mod doctor;
mod door;
mod gateway;
mod generators;
mod health;
mod import;
mod init;
mod inspect;
mod installed;
mod judged;
mod keys;
mod messages;
mod model;
mod outside;
mod parity;
mod place;
mod plan;
mod progress;
mod python;
mod python_model;
mod quantize;
mod queue;
mod scaler;
mod scoring;
mod sentences;
mod server;
mod service;
mod simulate;
mod smollm2;
mod stores;
mod terminal;
mod top;
mod worker;
