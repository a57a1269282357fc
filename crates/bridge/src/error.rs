//! Errors that end a worker.

use crate::config::ConfigError;

/// Reason why a worker could not start, or had to exit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The keyring cannot be used.
    #[error(transparent)]
    Keys(#[from] nsbridge_crypto::KeyringError),
    /// A key of AWS KMS cannot be used.
    #[error(transparent)]
    KeyService(#[from] nsbridge_crypto::KeyError),
    /// The broker cannot be used.
    #[error("the queue cannot be used")]
    Queue(#[from] nsbridge_queue::Error),
    /// A model cannot be opened or fetched.
    #[error(transparent)]
    Store(#[from] nsbridge_store::StoreError),
    /// The handler did not load.
    #[error("the handler did not load")]
    Load(#[source] nsbridge_handler::Cause),
    /// The handler broke while it ran; its jobs were requeued. The reason is one line, without the
    /// handler's error, which may quote what a user wrote.
    #[error("the handler broke ({0}); its jobs were given back")]
    Handler(String),
    /// The address of the health pages cannot be bound.
    #[error("cannot listen on {addr} ([health] listen)")]
    Listen {
        /// Address from `[health]`.
        addr: std::net::SocketAddr,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The operating system refused something that a worker needs.
    #[error("cannot {what}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
}
