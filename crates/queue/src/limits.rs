//! Size and time limits of queues.

use std::time::Duration;

use nsbridge_protocol::topology;

/// Limits that queues are declared with.
///
/// The defaults are those of the protocol. Every worker and client must declare the same values, so
/// only tests use others. A literal ends in `..Limits::default()`: minor versions add fields.
///
/// ```
/// use nsbridge_queue::{Limits, MemoryBroker};
///
/// let small = Limits { model_queue_bytes: 1 << 20, ..Limits::default() };
/// let broker = MemoryBroker::with_limits(small);
/// # drop(broker);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum total size of messages in a model queue, in bytes.
    pub model_queue_bytes: u64,
    /// Maximum total size of a model's dead letters, in bytes.
    pub dead_queue_bytes: u64,
    /// Maximum total size of messages in a retry queue, in bytes.
    pub retry_queue_bytes: u64,
    /// Maximum total size of messages in a reply queue, in bytes.
    pub reply_queue_bytes: u64,
    /// Number of redeliveries after which the broker dead-letters a message.
    pub deliveries: u32,
    /// Time that a reply queue outlives its last consumer.
    pub reply_lease: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            model_queue_bytes: topology::MODEL_QUEUE_MAX_BYTES,
            dead_queue_bytes: topology::DEAD_QUEUE_MAX_BYTES,
            retry_queue_bytes: topology::RETRY_QUEUE_MAX_BYTES,
            reply_queue_bytes: topology::REPLY_QUEUE_MAX_BYTES,
            deliveries: topology::DELIVERY_LIMIT,
            reply_lease: topology::REPLY_QUEUE_EXPIRES,
        }
    }
}
