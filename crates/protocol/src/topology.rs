//! Names and arguments of queues and exchanges, which are constants of the protocol.
//!
//! Only workers and the command line declare model queues. A client declares its own reply queue.

use std::time::Duration;

use crate::name::{ModelName, Revision};
use crate::priority::Priority;
use crate::{MAX_PIECE_BYTES, MAX_REQUEST_BYTES, MAX_TRANSCRIPT_BYTES};

/// Direct exchange for control frames; the routing key is a model or a worker's control queue.
///
/// A third form of the key addresses one revision of a model: [`revision_key`].
pub const CONTROL_EXCHANGE: &str = "nsbridge.control";

/// Direct exchange for replies; the routing key is a client's reply queue.
///
/// Workers publish replies to no other exchange, so a forged `reply_to` cannot reach a model queue.
pub const REPLY_EXCHANGE: &str = "nsbridge.reply";

/// Routing key of the message with which a worker finds out if it can publish replies. No queue is bound
/// by it, so the broker returns the message.
pub const PROBE_KEY: &str = "nsbridge.probe";

/// `x-delivery-limit` of model queues: redeliveries before the broker dead-letters a message.
///
/// This is a backstop for messages that end a worker before their run is recorded. Workers
/// themselves give up at [`POISON_RUNS`] and republish at [`RENEW_DELIVERIES`]. The limit is also
/// needed because RabbitMQ 3.10 returns a nacked message to the tail of a queue that has no limit.
pub const DELIVERY_LIMIT: u32 = 64;

/// Number of recorded runs that did not return at which a worker dead-letters a request.
///
/// The run of a first delivery is not recorded, so a message ends at most 16 workers.
pub const POISON_RUNS: u32 = 15;

/// Number of earlier deliveries at which a worker republishes a message as a new copy.
///
/// An innocent request therefore never reaches [`DELIVERY_LIMIT`].
pub const RENEW_DELIVERIES: u64 = 32;

/// `x-expires` of a run record since its last declaration: longer than any request lives.
pub const RUN_RECORD_EXPIRES: Duration = Duration::from_secs(30 * 60);

/// `x-max-length` of a run record: maximum number of its entries.
pub const RUN_RECORD_LENGTH: u32 = 64;

/// `x-max-length-bytes` of a model queue. Beyond it, publishers receive a nack.
pub const MODEL_QUEUE_MAX_BYTES: u64 = 8 << 30;

/// `x-max-length-bytes` of a dead-letter queue. Beyond it, the oldest messages are dropped.
///
/// Every publisher of requests can cause dead letters. Without a limit they could fill the broker's
/// disk, which blocks all publishers of all virtual hosts.
pub const DEAD_QUEUE_MAX_BYTES: u64 = 2 << 30;

/// `x-max-length-bytes` of each retry queue. Beyond it, workers receive a nack.
///
/// The queue rejects new messages and drops none, so a request that does not fit stays with its
/// worker.
pub const RETRY_QUEUE_MAX_BYTES: u64 = 1 << 30;

/// `x-max-length-bytes` of a reply queue. Beyond it, workers receive a nack and resend later.
pub const REPLY_QUEUE_MAX_BYTES: u64 = 64 << 20;

/// `x-expires` of a reply queue: lease after the client's consumer is gone.
pub const REPLY_QUEUE_EXPIRES: Duration = Duration::from_secs(15);

/// `x-message-ttl` of the dead-letter queue.
///
/// It must not exceed the retention of the keys that open its messages.
pub const DEAD_LETTER_TTL: Duration = Duration::from_secs(14 * 24 * 3600);

/// Maximum size of a message body in a queue of requests, in bytes: the frame of a request.
pub const REQUEST_BODY: usize = MAX_REQUEST_BYTES + (8 << 10);

/// Maximum size of a message body in a control queue, in bytes.
///
/// The largest one is the frame of a resume, which carries all pieces of a reply.
pub const CONTROL_BODY: usize = MAX_TRANSCRIPT_BYTES + (72 << 10);

/// Maximum size of a message body in a reply queue, in bytes.
///
/// The largest one is the frame of one piece with its log-probabilities.
pub const REPLY_BODY: usize = MAX_PIECE_BYTES + (72 << 10);

/// Maximum size of any message body, in bytes. The broker's `max_message_size` must allow it.
pub const LARGEST_BODY: usize = CONTROL_BODY;

/// `x-delivery-limit` of the dead-letter queue.
///
/// Inspecting a dead letter requeues it, and RabbitMQ 4 drops a message after 20 deliveries by
/// default. A limit of -1 (none) is no alternative: with it, RabbitMQ 3.10 drops a message at its
/// first requeue.
pub const DEAD_LETTER_LOOKS: u64 = 1_000_000;

/// Maximum time from sealing a request to its end: below RabbitMQ's consumer timeout.
pub const MAX_TIME_TO_FINISH: Duration = Duration::from_secs(25 * 60);

/// Retry queues of a model, by increasing delay.
pub const RETRY_TIERS: [RetryTier; 3] = [
    RetryTier { name: "1s", delay: Duration::from_secs(1) },
    RetryTier { name: "10s", delay: Duration::from_secs(10) },
    RetryTier { name: "60s", delay: Duration::from_secs(60) },
];

/// Retry queue with a fixed delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryTier {
    /// Last part of the queue's name.
    pub name: &'static str,
    /// Time that a message stays in the queue before it returns to the model queue.
    pub delay: Duration,
}

/// Names of message headers. Headers are hints; only the sealed frame is trusted.
pub mod header {
    /// Model name, for people who inspect a queue.
    pub const MODEL: &str = "nsb-model";
    /// Key id, for people who inspect a queue.
    pub const KEY_ID: &str = "nsb-kid";
    /// Number of retries so far; absent means 0. It selects the retry queue. A wait for a busy key
    /// service, or for a pinned revision that is served elsewhere, does not count.
    pub const TRIES: &str = "nsb-tries";
    /// Number of the copy (u16); absent means 0, the first copy.
    ///
    /// A worker that republishes a request and a client that enqueues it again both increase it.
    pub const EPOCH: &str = "nsb-epoch";
    /// Id of the dead-lettered request that this one replays; set by `nsbridge queue replay`.
    pub const REPLAY_OF: &str = "nsb-replay-of";
    /// Sender's span in W3C Trace Context format: a [`TraceParent`](crate::TraceParent).
    pub const TRACE_PARENT: &str = "traceparent";
    /// Span of the previous attempt, on a resume and on a copy republished by a worker.
    pub const TRACE_BEFORE: &str = "nsb-traceparent-before";
    /// Reason for the dead letter: an [`ErrorCode`](crate::ErrorCode).
    pub const REASON: &str = "nsb-reason";
    /// Number of deliveries of the request before it was dead-lettered.
    pub const DELIVERIES: &str = "nsb-deliveries";
    /// Time of dead-lettering, in milliseconds since the Unix epoch.
    pub const DEAD_AT: &str = "nsb-dead-at";
    /// Queue that the dead letter came from.
    pub const QUEUE: &str = "nsb-queue";
    /// Size in bytes of a dead letter's original body, if the dead letter is kept without it.
    pub const BYTES: &str = "nsb-bytes";
    /// Number of earlier deliveries; set by the broker.
    pub const DELIVERY_COUNT: &str = "x-delivery-count";
    /// Number of earlier deliveries, nacks included; set by RabbitMQ from 4.3 on.
    pub const ACQUIRED_COUNT: &str = "x-acquired-count";
}

/// Returns the routing key on the control exchange for the workers of one model revision.
pub fn revision_key(model: &ModelName, revision: &Revision) -> String {
    format!("{model}@{revision}")
}

/// Returns the name of the queue that holds a model's requests.
///
/// ```
/// use nsbridge_protocol::topology::{dead_queue, model_queue};
///
/// let model = "tale-7m".parse()?;
/// assert_eq!(model_queue(&model), "nsbridge.tale-7m");
/// assert_eq!(dead_queue(&model), "nsbridge.tale-7m.dead");
/// # Ok::<(), nsbridge_protocol::InvalidName>(())
/// ```
pub fn model_queue(model: &ModelName) -> String {
    format!("nsbridge.{model}")
}

/// Returns the name of a model's queue for bulk requests.
pub fn bulk_queue(model: &ModelName) -> String {
    format!("nsbridge.{model}.bulk")
}

/// Returns the name of the queue for a model's requests of this class.
pub fn request_queue(model: &ModelName, priority: Priority) -> String {
    match priority {
        Priority::Interactive => model_queue(model),
        Priority::Bulk => bulk_queue(model),
    }
}

/// Returns the name of the queue where a request of this class waits for its next attempt. From
/// there it returns to the queue of its class.
pub fn retry_queue(model: &ModelName, priority: Priority, tier: RetryTier) -> String {
    format!("{}.retry.{}", request_queue(model, priority), tier.name)
}

/// Returns the name of a model's dead-letter queue.
pub fn dead_queue(model: &ModelName) -> String {
    format!("nsbridge.{model}.dead")
}

/// Returns the name of the run record of a request; each of its messages is one recorded run.
pub fn run_record(model: &ModelName, number: u128) -> String {
    format!("nsbridge.{model}.runs.{number:032x}")
}

/// Beginning of the names of reply queues.
pub const REPLY_QUEUE_PREFIX: &str = "nsbridge.reply.";

/// Returns the name of the reply queue of the client with this random number.
pub fn reply_queue(random: u128) -> String {
    format!("{REPLY_QUEUE_PREFIX}{random:032x}")
}

/// Returns the name of the control queue of the worker with this random number.
pub fn control_queue(random: u128) -> String {
    format!("nsbridge.control.{random:032x}")
}

/// Returns the maximum size in bytes of a message body in this queue.
///
/// A consumer receives a message with a larger body without that body.
pub fn largest_body(queue: &str) -> usize {
    if queue.starts_with(REPLY_QUEUE_PREFIX) {
        REPLY_BODY
    } else if queue.starts_with("nsbridge.control.") {
        CONTROL_BODY
    } else {
        REQUEST_BODY
    }
}
