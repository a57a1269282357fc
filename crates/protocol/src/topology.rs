//! Queues and exchanges: their names and arguments are constants of the protocol.
//!
//! Only workers and the command line declare model queues; a client declares its own reply queue.

use std::time::Duration;

use crate::{MAX_FRAME_BYTES, MAX_REQUEST_BYTES, MAX_TRANSCRIPT_BYTES, ModelName, Revision};

/// The direct exchange that carries control frames: key = a model, or a worker's control queue.
pub const CONTROL_EXCHANGE: &str = "nsbridge.control";

/// The direct exchange that carries replies: key = a client's reply queue.
///
/// Workers publish replies nowhere else, so a forged `reply_to` cannot reach a model queue.
pub const REPLY_EXCHANGE: &str = "nsbridge.reply";

/// How often a message may come back before the broker itself dead-letters it.
///
/// A backstop for what ends a worker before its run is recorded: workers give up at
/// [`POISON_RUNS`] and republish at [`RENEW_DELIVERIES`]. It must be set all the same, because
/// RabbitMQ 3.10 returns a nacked message to the tail of a queue that has no limit.
pub const DELIVERY_LIMIT: u32 = 64;

/// Recorded runs without an orderly end at which a worker dead-letters a request.
///
/// The run of a first delivery is not recorded, so a message ends at most 16 workers.
pub const POISON_RUNS: u32 = 15;

/// Earlier deliveries at which a worker publishes a copy in place of the message, so that an
/// innocent request never reaches [`DELIVERY_LIMIT`].
pub const RENEW_DELIVERIES: u64 = 32;

/// Time that a run record outlives its last declaration: longer than any request lives.
pub const RUN_RECORD_EXPIRES: Duration = Duration::from_secs(30 * 60);

/// The most entries of a run record.
pub const RUN_RECORD_LENGTH: u32 = 64;

/// The most bytes that may wait in a model's queue before publishers are refused.
pub const MODEL_QUEUE_MAX_BYTES: u64 = 8 << 30;

/// The most bytes of a model's dead letters; the oldest ones make room for new ones.
///
/// Who may publish requests makes dead letters: without a limit they fill the broker's disk, which
/// stops all publishers of all virtual hosts.
pub const DEAD_QUEUE_MAX_BYTES: u64 = 2 << 30;

/// The most bytes that may wait in one of a model's retry queues before workers are refused.
///
/// Refused and not dropped: the request that a worker cannot put there is still the worker's.
pub const RETRY_QUEUE_MAX_BYTES: u64 = 1 << 30;

/// The most bytes that may wait in a client's reply queue before workers are held back.
pub const REPLY_QUEUE_MAX_BYTES: u64 = 64 << 20;

/// How long a reply queue outlives its client's connection.
pub const REPLY_QUEUE_EXPIRES: Duration = Duration::from_secs(15);

/// How long a dead letter is kept; must not exceed the retention of the keys that open it.
pub const DEAD_LETTER_TTL: Duration = Duration::from_secs(14 * 24 * 3600);

/// The most bytes of a message's body in a queue of requests: a request's frame.
pub const REQUEST_BODY: usize = MAX_REQUEST_BYTES + (8 << 10);

/// The most bytes of a message's body in a worker's control queue: a resume's frame, which has all
/// pieces of a reply.
pub const CONTROL_BODY: usize = MAX_TRANSCRIPT_BYTES + (72 << 10);

/// The most bytes of a message's body in a client's reply queue: the frame of one piece, with its
/// log-probabilities.
pub const REPLY_BODY: usize = MAX_FRAME_BYTES + (72 << 10);

/// The most bytes of any message's body: what the broker's `max_message_size` must allow.
pub const LARGEST_BODY: usize = CONTROL_BODY;

/// How often a dead letter may be looked at. RabbitMQ 4 drops what came back 20 times to a queue
/// that does not say otherwise, and who looks gives back. -1, no limit there, drops a message of
/// 3.10 that comes back once.
pub const DEAD_LETTER_LOOKS: u64 = 1_000_000;

/// The longest a request may take from sealing to its end: below RabbitMQ's consumer timeout.
pub const MAX_TIME_TO_FINISH: Duration = Duration::from_secs(25 * 60);

/// The waiting rooms of requests that are to be tried again later.
pub const RETRY_TIERS: [RetryTier; 3] = [
    RetryTier { name: "1s", delay: Duration::from_secs(1) },
    RetryTier { name: "10s", delay: Duration::from_secs(10) },
    RetryTier { name: "60s", delay: Duration::from_secs(60) },
];

/// One waiting room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryTier {
    /// The last word of its queue's name.
    pub name: &'static str,
    /// How long a message stays in it.
    pub delay: Duration,
}

/// Names of message headers. Headers are hints: what counts is inside the sealed frame.
pub mod header {
    /// The model, for people who look at a queue.
    pub const MODEL: &str = "nsb-model";
    /// The key id, for the same.
    pub const KEY_ID: &str = "nsb-kid";
    /// How often a worker tried the request and put it off; absent means 0. It chooses the tier.
    pub const TRIES: &str = "nsb-tries";
    /// Which copy of the request it is, put off by a worker or asked again by its client (u16);
    /// absent means 0, the first.
    pub const EPOCH: &str = "nsb-epoch";
    /// The request that died and that this one repeats; set by `nsbridge queue replay`.
    pub const REPLAY_OF: &str = "nsb-replay-of";
    /// The sender's span, as the W3C's Trace Context writes it: a
    /// [`TraceParent`](crate::TraceParent).
    pub const TRACE_PARENT: &str = "traceparent";
    /// The span of the attempt before, on a resume and on a copy that a worker published again.
    pub const TRACE_BEFORE: &str = "nsb-traceparent-before";
    /// Why a dead letter is one: an [`ErrorCode`](crate::ErrorCode).
    pub const REASON: &str = "nsb-reason";
    /// How often the request had been delivered when it was dead-lettered.
    pub const DELIVERIES: &str = "nsb-deliveries";
    /// When the request was dead-lettered, in milliseconds since 1970.
    pub const DEAD_AT: &str = "nsb-dead-at";
    /// The queue that a dead letter came from.
    pub const QUEUE: &str = "nsb-queue";
    /// How many bytes the body of a dead letter had that is kept without it.
    pub const BYTES: &str = "nsb-bytes";
    /// Set by the broker: how often the message was delivered before.
    pub const DELIVERY_COUNT: &str = "x-delivery-count";
    /// Set by RabbitMQ from 4.3 on: the same, nacks included.
    pub const ACQUIRED_COUNT: &str = "x-acquired-count";
}

/// The control exchange's key for the workers of one revision of a model.
pub fn revision_key(model: &ModelName, revision: &Revision) -> String {
    format!("{model}@{revision}")
}

/// The queue that holds a model's requests.
pub fn model_queue(model: &ModelName) -> String {
    format!("nsbridge.{model}")
}

/// The queue of low-priority requests for a model.
pub fn bulk_queue(model: &ModelName) -> String {
    format!("nsbridge.{model}.bulk")
}

/// The queue where a request waits before it is tried again.
pub fn retry_queue(model: &ModelName, tier: RetryTier) -> String {
    format!("nsbridge.{model}.retry.{}", tier.name)
}

/// The queue that keeps what could not be answered.
pub fn dead_queue(model: &ModelName) -> String {
    format!("nsbridge.{model}.dead")
}

/// The queue whose messages are the recorded runs of the request with this record number.
pub fn run_record(model: &ModelName, number: u128) -> String {
    format!("nsbridge.{model}.runs.{number:032x}")
}

/// The reply queue of the client with this random number.
pub fn reply_queue(random: u128) -> String {
    format!("nsbridge.reply.{random:032x}")
}

/// The control queue of the worker with this random number.
pub fn control_queue(random: u128) -> String {
    format!("nsbridge.control.{random:032x}")
}

/// Returns the most bytes that a message's body may have in this queue. A consumer of the queue is
/// not handed more: it gets the message without its body.
pub fn largest_body(queue: &str) -> usize {
    if queue.starts_with("nsbridge.reply.") {
        REPLY_BODY
    } else if queue.starts_with("nsbridge.control.") {
        CONTROL_BODY
    } else {
        REQUEST_BODY
    }
}
