//! Configuration files of the worker and of the gateway: TOML, with each field overridable from the
//! environment.
//!
//! ```
//! use nsbridge_base::config::{Environment, parse};
//!
//! #[derive(serde::Deserialize)]
//! struct Config {
//!     server: Server,
//! }
//!
//! #[derive(serde::Deserialize)]
//! struct Server {
//!     threads: u16,
//! }
//!
//! let environment = [("NSBRIDGE_SERVER__THREADS".to_owned(), "9".to_owned())];
//! let config: Config = parse("[server]\nthreads = 8\n", &Environment::new(environment))?;
//! assert_eq!(config.server.threads, 9);
//! # Ok::<(), nsbridge_base::config::ConfigError>(())
//! ```

mod broker;
mod environment;
mod file;
mod layers;

pub use broker::{BrokerConfig, password_of};
pub use environment::{Environment, variables};
pub use file::ConfigFile;
pub use layers::{Misfit, parse, place};

/// Reason why a configuration cannot be used: one sentence with the file, the field and advice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    /// Creates an error from its sentence.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}
