//! Worker: takes sealed requests from a model's queue, runs a handler, streams sealed replies.
//!
//! A complete worker is a [`Handler`](nsbridge_handler::Handler) and one line:
//!
//! ```no_run
//! # use nsbridge_handler::{Finish, Handler, Job, Models, Result};
//! # struct MyHandler;
//! # impl Handler for MyHandler {
//! #     type Options = ();
//! #     type Input = String;
//! #     type Output = String;
//! #     async fn load((): (), _: Models) -> Result<Self> { Ok(Self) }
//! #     async fn handle(&self, _: String, _: &mut Job<String>) -> Result<Finish> {
//! #         Ok(Finish::STOP)
//! #     }
//! # }
//! fn main() -> std::process::ExitCode {
//!     nsbridge::serve::<MyHandler>()
//! }
//! ```
//!
//! `job.rs` follows the life of a request. `docs/protocol.md` has the rules that a worker keeps.

mod attempt;
mod clock;
mod config;
mod confine;
mod context;
mod dead;
mod disposition;
mod drain;
mod error;
mod fleet;
mod health;
mod http;
mod intake;
mod job;
mod keys;
mod loading;
mod metrics;
mod pool;
mod probes;
mod record;
mod registry;
mod rest;
mod room;
mod runner;
mod serve;
mod session;
mod settle;
mod stream;
mod telemetry;
mod visit;
mod vitals;
mod window;
mod worker;

pub use config::{
    BrokerConfig, Config, ConfigError, FleetConfig, HealthConfig, KeysConfig, LogConfig, LogFormat,
    ModelConfig, ReplyConfig, StoreConfig, TelemetryConfig, WorkerConfig, password_of,
};
pub use drain::Drain;
pub use error::Error;
pub use fleet::{EcsAddresses, Fleet};
pub use health::{Health, Pages};
pub use metrics::Metrics;
pub use nsbridge_handler::chain;
pub use nsbridge_store as store;
pub use serve::{log_to_stderr, run, serve, start};
pub use telemetry::Spans;
pub use vitals::Vitals;
pub use worker::{Parts, Worker};
