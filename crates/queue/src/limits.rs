//! How much the queues hold, and for how long.

use std::time::Duration;

use nsbridge_protocol::topology;

/// The limits that a broker's queues are declared with.
///
/// The default is the protocol's. Every party must declare the same, so only tests use others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes that may wait in a model's queue.
    pub model_queue_bytes: u64,
    /// The most bytes of a model's dead letters.
    pub dead_queue_bytes: u64,
    /// The most bytes that may wait in a retry queue.
    pub retry_queue_bytes: u64,
    /// The most bytes that may wait in a reply queue.
    pub reply_queue_bytes: u64,
    /// How often a message may come back before the broker dead-letters it.
    pub deliveries: u32,
    /// How long a reply queue outlives its last consumer.
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
