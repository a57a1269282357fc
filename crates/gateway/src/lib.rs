//! OpenAI-compatible HTTP server in front of nsbridge's queues.
//!
//! A [`Gateway`] takes requests in the shape of OpenAI's API, submits them to the queue of their
//! model, and streams the reply as server-sent events. A reply does not depend on the connection
//! that asked for it: a retry joins it, `GET /v1/responses/{id}?starting_after=N` reads it from any
//! event on, and with a store it survives the end of the gateway's process. Batches of requests, which
//! need a store, survive it as well. Anthropic's Messages API is served, too.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use nsbridge_gateway::{Config, Gateway};
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let gateway = Gateway::connect(Config::read(Path::new("gateway.toml"), [])?).await?;
//! println!("listening at {}", gateway.address());
//! let drain = gateway.drain();
//! tokio::spawn(async move {
//!     let _ = tokio::signal::ctrl_c().await;
//!     drain.cancel();
//! });
//! gateway.run().await;
//! # Ok(())
//! # }
//! ```
//!
//! | you need | you take |
//! |---|---|
//! | a configuration | [`Config::read`] |
//! | a running gateway | [`Gateway::connect`], [`Gateway::run`] |
//! | a gateway on a broker of your own, in tests | [`Gateway::on`] |
//! | a gateway as the broker of another one, which seals | [`GatewayBroker`] |
//! | a batch of a file, without a listener | [`BatchRun`] |
//! | API keys | [`access::add`], [`access::list`], [`access::disable`] |

pub mod access;
mod accounts;
mod archive;
mod batch_run;
mod batches;
mod bodies;
mod catalog;
mod chat;
mod class;
mod completions;
mod config;
mod decisions;
mod embeddings;
mod error;
mod extent;
mod fields;
mod files;
mod gateway;
mod heap;
mod ids;
mod judges;
mod limits;
mod memory;
mod messages;
mod meter;
mod metrics;
mod models;
mod moderations;
mod openapi;
mod output;
mod page;
mod private_file;
mod proxy;
mod relay;
mod reply_end;
mod responses;
mod routes;
mod run;
mod runs;
mod sampling;
mod semaphores;
mod server;
mod shared;
mod shares;
mod sse;
mod state;
mod store;
mod tls;
mod tokens;
mod tools;
mod traces;
mod unread;
mod wire;

pub use batch_run::{BatchError, BatchProgress, BatchRun};
pub use catalog::{Model, Reasoning, Task, Tools};
pub use config::{
    AccessConfig, BatchConfig, Config, ConfigError, Keys, Server, StoreConfig, Telemetry,
};
pub use gateway::{Error, Gateway};
pub use nsbridge_config::BrokerConfig;

pub use private_file::{PrivateFileError, Reload};
pub use proxy::GatewayBroker;
pub use shared::SharedError;
pub use store::StoreError;
pub use tls::TlsError;
