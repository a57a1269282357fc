//! What can go wrong between here and the broker.

use std::error::Error as StdError;

/// The result of a queue operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a queue operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No broker answered; `address` has no password in it.
    #[error("cannot reach the broker at {address}")]
    Unreachable {
        /// Scheme, host, port and virtual host.
        address: String,
        /// What the network said.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The broker refused the user, the password or the virtual host.
    #[error("the broker at {address} refused the login: check user, password and virtual host")]
    Denied {
        /// Scheme, host, port and virtual host.
        address: String,
        /// What the broker said.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The address of the broker cannot be read.
    #[error("`{address}` is not the address of a broker: use amqp://user:password@host:5672/%2f")]
    Address {
        /// The address, with what may be a password cut out.
        address: String,
    },
    /// The address leads to another machine without TLS.
    #[error(
        "the broker at {address} would be reached without TLS, with its password readable on the \
         network: use amqps://, or add ?allow_plaintext=true to the address"
    )]
    Plaintext {
        /// Scheme, host, port and virtual host.
        address: String,
    },
    /// A queue exists with other arguments than the protocol's.
    #[error(
        "the queue {queue} exists with other arguments than nsbridge's: {broker_says}; \
         drain and delete it, or use another virtual host"
    )]
    Topology {
        /// The queue's name.
        queue: String,
        /// The broker's own words.
        broker_says: String,
    },
    /// There is no such queue.
    #[error("there is no queue {queue}")]
    NoQueue {
        /// The queue's name.
        queue: String,
    },
    /// The connection or the channel is gone.
    #[error("the connection to the broker is gone: {reason}")]
    Lost {
        /// Why, in the broker's or the network's words.
        reason: String,
    },
}

impl Error {
    /// Whether trying again later, on a new connection, may help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Lost { .. } => true,
            // A missing queue may be on its way; the others need a person.
            Self::NoQueue { .. } => true,
            Self::Denied { .. }
            | Self::Address { .. }
            | Self::Plaintext { .. }
            | Self::Topology { .. } => false,
        }
    }
}
