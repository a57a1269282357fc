//! Errors of queue operations.

use std::error::Error as StdError;

/// Result of a queue operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a queue operation.
///
/// ```
/// use nsbridge_queue::Error;
///
/// assert!(Error::Lost { reason: "the broker restarted".to_owned() }.is_retryable());
/// let (address, reason) = ("localhost".to_owned(), "it has no scheme".to_owned());
/// assert!(!Error::Address { address, reason }.is_retryable());
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No answer from a broker. `address` contains no password.
    #[error("cannot reach the broker at {address}")]
    Unreachable {
        /// Scheme, host, port and virtual host.
        address: String,
        /// Error of the network.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// User, password or virtual host refused by the broker.
    #[error("the broker at {address} refused the login: check user, password and virtual host")]
    Denied {
        /// Scheme, host, port and virtual host.
        address: String,
        /// Error from the broker.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// Gateway that stands in for the broker, and cannot be used. Another try meets the same reason.
    #[error("the gateway at {address} cannot be used: {reason}")]
    Gateway {
        /// Host and port.
        address: String,
        /// Reason.
        reason: String,
    },
    /// Address of the broker that cannot be parsed.
    #[error("`{address}` is not the address of a broker: {reason}")]
    Address {
        /// Address, with everything removed that may be a password.
        address: String,
        /// Reason, and what to write.
        reason: String,
    },
    /// Address of another machine without TLS.
    #[error(
        "the broker at {address} would be reached without TLS, with its password readable on the \
         network: use amqps://, or add ?allow_plaintext=true to the address"
    )]
    Plaintext {
        /// Scheme, host, port and virtual host.
        address: String,
    },
    /// Queue that exists with other arguments than the protocol's.
    #[error(
        "the queue {queue} exists with other arguments than nsbridge's: {broker_says}; \
         drain and delete it, or use another virtual host"
    )]
    Topology {
        /// Name of the queue.
        queue: String,
        /// Message of the broker.
        broker_says: String,
    },
    /// Exchange that exists with another type or other arguments than the protocol's.
    #[error(
        "the exchange {exchange} is not nsbridge's: {broker_says}; delete it, or use another \
         virtual host"
    )]
    Exchange {
        /// Name of the exchange.
        exchange: String,
        /// Message of the broker.
        broker_says: String,
    },
    /// Limit of the broker, of the virtual host or of the user that is reached. A later try may
    /// succeed.
    #[error(
        "a limit of the broker is reached: {broker_says}; raise it (`rabbitmqctl set_user_limits`, \
         `rabbitmqctl set_vhost_limits`, or the plan of a hosted broker)"
    )]
    Limit {
        /// Message of the broker.
        broker_says: String,
    },
    /// Declaration that the broker refused for another reason.
    #[error("the broker refused to declare {name}: {broker_says}")]
    Refused {
        /// Name of the queue or the exchange.
        name: String,
        /// Message of the broker.
        broker_says: String,
    },
    /// Queue that does not exist.
    #[error("there is no queue {queue}")]
    NoQueue {
        /// Name of the queue.
        queue: String,
    },
    /// Queue that exists, on a node of the cluster that is down. It can be neither used nor deleted until
    /// the node is back.
    #[error("the queue {queue} is on a node of the broker that is down")]
    NodeDown {
        /// Name of the queue.
        queue: String,
    },
    /// Connection or channel that is gone.
    #[error("the connection to the broker is gone: {reason}")]
    Lost {
        /// Reason given by the broker or the network.
        reason: String,
    },
}

impl Error {
    /// Returns true if a later try on a new connection may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Lost { .. } => true,
            // A limit may be raised.
            Self::Limit { .. } => true,
            // A missing queue may be declared soon. The other errors need a person.
            Self::NoQueue { .. } => true,
            // The node may come back.
            Self::NodeDown { .. } => true,
            Self::Denied { .. }
            | Self::Gateway { .. }
            | Self::Address { .. }
            | Self::Plaintext { .. }
            | Self::Topology { .. }
            | Self::Exchange { .. }
            | Self::Refused { .. } => false,
        }
    }
}
