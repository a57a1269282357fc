//! What ends a worker.

use crate::config::ConfigError;

/// Why a worker could not start, or had to leave.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The keyring cannot be used.
    #[error(transparent)]
    Keys(#[from] nsbridge_crypto::KeyringError),
    /// The broker cannot be used.
    #[error("the queue cannot be used")]
    Queue(#[from] nsbridge_queue::Error),
    /// A model cannot be had.
    #[error(transparent)]
    Store(#[from] nsbridge_store::StoreError),
    /// The handler did not load.
    #[error("the handler did not load: {0}")]
    Load(String),
    /// The handler broke while it ran; its jobs were given back.
    #[error("the handler broke ({0}); its jobs were given back")]
    Handler(String),
    /// The pages of `[health]` have no port.
    #[error("cannot listen on {addr} ([health] listen)")]
    Listen {
        /// Where.
        addr: std::net::SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The operating system refused something a worker needs.
    #[error("cannot {what}")]
    System {
        /// What.
        what: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}
