//! Names, help texts and buckets of all metrics. They stand nowhere else.
//!
//! Names with dots are OpenTelemetry's: from its conventions for generative AI and for messaging,
//! both of status "Development". They may still change, and then they change here. Buckets are the
//! conventions' own, extended to the time that a request may take.

nsbridge_telemetry::names! {
    REQUEST_DURATION = "gen_ai.server.request.duration",
        "From the delivery of a request to its end in this worker";
    FIRST_TOKEN = "gen_ai.server.time_to_first_token",
        "From the delivery of a request that ended well to its first new piece's frame";
    PER_TOKEN = "gen_ai.server.time_per_output_token",
        "Between two pieces after the first, averaged over a request that ended well";
    CONSUMED = "messaging.client.consumed.messages",
        "Deliveries taken from the model's queues";
    PROCESSED = "messaging.process.duration",
        "From a delivery to its settlement";
    QUEUE_WAIT = "queue_wait",
        "Age of a request when this worker began to process it; only of requests that open";
    REQUESTS_IN_FLIGHT = "requests_in_flight",
        "Requests that hold a slot, those that wait in the worker included";
    SLOTS = "slots",
        "Maximum number of requests in this worker, those that wait in it included";
    GIVEN_UP = "calls_given_up",
        "Calls that did not return within 5 s of a stop";
    LEFTOVER = "calls_left_over",
        "Slots held by calls that were given up and have not ended";
    TOKENS_IN_FLIGHT = "tokens_in_flight",
        "Pieces, so far, of the replies that run now, resumed ones included";
    TOKEN_USAGE = "token_usage",
        "Tokens of a request, as its handler counted them; else its pieces as output";
    REQUESTS_ENDED = "requests_ended",
        "Requests that ended in this worker, by how";
    ATTEMPTS = "attempts_opened",
        "Reply streams opened";
    RESUMES = "resumes",
        "Calls that went on after pieces of an earlier attempt";
    RESUMED_PIECES = "resumed_pieces",
        "Pieces that were taken over instead of computed again";
    ADOPTIONS = "adoptions",
        "Deliveries that were handed to a run of theirs that had lost its own";
    ORPHANS = "orphans",
        "Runs whose delivery was lost with its connection";
    ORPHANS_ENDED = "orphans_ended",
        "Runs without a delivery that ended, by how";
    DEAD_LETTERS = "dead_letters",
        "Requests moved to the dead-letter queue, by reason";
    RETRIES = "retries",
        "Requests put into a retry queue, by waiting time";
    PREEMPTIONS = "preemptions",
        "Bulk requests that gave up their slot to an interactive one";
    KEY_PAUSES = "key_pauses",
        "Deliveries put off because the key service could not answer";
    KEYRING_RELOADS = "keyring_reloads",
        "Changes of the keyring's file that were taken, or refused";
    KEYRING_REFUSED = "keyring_refused",
        "1 while the keyring's file cannot be used and the previous keys are in use";
    RECONNECTS = "reconnects",
        "Connections to the broker opened again";
    BLOCKED = "broker_blocked",
        "1 while the broker does not read what this worker publishes";
    PUBLISH_FAILING = "publish_failing",
        "1 while this worker can publish no reply, and so takes no requests";
    CONFIRM_LATENCY = "confirm_latency",
        "From the publishing of a reply's frame to the broker's confirm";
    STALE_ACKS = "stale_acks",
        "Settlements of deliveries that were not this worker's any more";
    FRAMES = "frames_sent",
        "Reply frames published, heartbeats included";
    HEARTBEATS = "heartbeats",
        "Heartbeat frames published";
    CANCELS = "cancels",
        "Cancels that were verified";
    QUEUE_MESSAGES = "queue_messages",
        "Ready messages in a queue of the model";
    LOAD_PHASE = "load_phase",
        "What a part of the worker's start took: find, load or warm_up";
    MODEL_BYTES = "model_bytes",
        "Bytes of models that were read, from the store or from the cache";
    DAMAGED_CHUNKS = "model_damaged_chunks",
        "Chunks of models that did not have their digest, and were read again";
    STORE_RETRIES = "store_retries",
        "Requests to the store of models that were made again";
    DROPPED_LOG_LINES = "log_lines_dropped",
        "Log lines that were not written, because the log is read too slowly";
    INFO = "worker_info",
        "Always 1; fingerprint, revision and version of the worker";
}

/// Buckets of [`REQUEST_DURATION`] and [`PROCESSED`], in seconds.
pub(super) const DURATION_BUCKETS: [f64; 17] = [
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
    327.68, 600.0,
];

/// Buckets of [`FIRST_TOKEN`] and [`QUEUE_WAIT`], in seconds.
pub(super) const FIRST_TOKEN_BUCKETS: [f64; 21] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0,
];

/// Buckets of [`PER_TOKEN`], in seconds; the first three are for small models.
pub(super) const PER_TOKEN_BUCKETS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];

/// Buckets of [`CONFIRM_LATENCY`], in seconds.
pub(super) const CONFIRM_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0];

/// Buckets of [`TOKEN_USAGE`], in tokens.
pub(super) const TOKEN_BUCKETS: [f64; 11] =
    [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0];
