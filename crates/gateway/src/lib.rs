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

mod accounts;
mod api;
mod archive;
mod catalog;
mod config;
mod error;
mod field_names;
mod fields;
mod gateway;
mod http;
mod ids;
mod metrics;
mod sealed;
mod state;

/// API keys, and the limits of their holders.
pub mod access {
    pub use nsbridge_gateway_access::{
        Access, AccessError, AccessFile, ApiKey, ApiKeyId, Caller, Denied, Entry, InvalidApiKeyId,
        Limit, Limiter, Limits, NoRandomness, Priority, Refusal, Reservation, add, disable, list,
    };
}

pub use nsbridge_base::Reload;
pub use nsbridge_base::config::BrokerConfig;
pub use nsbridge_base::private_file::PrivateFileError;
pub use nsbridge_gateway_replies::{SharedError, StoreError};

pub use self::catalog::{InputSchema, Model, Reasoning, Task, Tools};
pub use self::config::{
    AccessConfig, BatchConfig, Config, ConfigError, Keys, Server, StoreConfig, Telemetry,
};
pub use self::gateway::batch_run::{BatchError, BatchProgress, BatchRun};
pub use self::gateway::{Error, Gateway, GatewayHealth};
pub use self::http::tls::TlsError;
pub use self::sealed::proxy::GatewayBroker;
