//! Names, help texts and buckets of all metrics. They stand nowhere else.
//!
//! Names with dots are OpenTelemetry's: from its conventions for HTTP, which are stable, and for
//! generative AI, of status "Development". Buckets are the conventions' own, extended to the time
//! that a reply may take.

nsbridge_telemetry::names! {
    REQUEST_DURATION = "http.server.request.duration",
        "From the headers of a request to the end of its response, of a stream to its last event";
    FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk",
        "From the submission of a request to the first piece of its reply";
    DURATION = "gen_ai.client.operation.duration",
        "From the submission of a request to the end of a reply that ended well";
    TOKEN_USAGE = "gen_ai.client.token.usage",
        "Tokens of a reply that ended well, as its worker counted them";
    RUNNING = "replies_running",
        "Replies that workers compute now for this gateway";
    STREAMS = "streams_open",
        "Responses that stream events now";
    REPLIES = "replies",
        "Replies that ended, by how";
    FAILED = "replies_failed",
        "Replies that failed, by the code of their error; streams of them have the status 200";
    RESTARTED = "replies_restarted",
        "Times at which a worker of another version withdrew pieces of a reply";
    REATTACHED = "replies_reattached",
        "Replies that were continued after a disconnect or a restart of the gateway";
    JOINED = "replies_joined",
        "Requests that joined the reply that they repeat";
    RESERVED = "tokens_reserved",
        "Tokens that requests reserved of their callers' limits";
    SETTLED = "tokens_settled",
        "Tokens that replies cost their callers";
    REFUSED = "requests_refused",
        "Requests that were answered with an error, by its code";
    DROPPED_LOG_LINES = "log_lines_dropped",
        "Log lines that were not written, because the log is read too slowly";
    FILE_REFUSED = "file_refused",
        "1 while a changed file cannot be used and the previous one is in use";
}

/// Buckets of [`REQUEST_DURATION`], in seconds.
pub(super) const REQUEST_BUCKETS: [f64; 17] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 60.0, 300.0,
    600.0,
];

/// Buckets of [`DURATION`], in seconds.
pub(super) const DURATION_BUCKETS: [f64; 17] = [
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
    327.68, 600.0,
];

/// Buckets of [`FIRST_CHUNK`], in seconds.
pub(super) const FIRST_CHUNK_BUCKETS: [f64; 21] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0,
];

/// Buckets of [`TOKEN_USAGE`], in tokens.
pub(super) const TOKEN_BUCKETS: [f64; 11] =
    [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0];

/// Codes of errors that requests are counted by; any other code counts as [`OTHER`], and those of
/// workers come in addition.
pub(super) const CODES: [&str; 52] = [
    "bad_reply",
    "batch_not_cancellable",
    "broker_unavailable",
    "cancelled",
    "context_length_exceeded",
    "deadline_exceeded",
    "draining",
    "duplicate_custom_id",
    "empty_file",
    "field_too_large",
    "file_in_use",
    "foreign_origin",
    "gateway_refused",
    "idempotency_key_reused",
    "invalid_api_key",
    "invalid_custom_id",
    "invalid_json_line",
    "invalid_method",
    "invalid_request_error",
    "invalid_url",
    "item_not_found",
    "line_too_long",
    "memory_limit",
    "missing_required_parameter",
    "model_not_found",
    "model_starting",
    "no_worker",
    "not_found",
    "not_served",
    "previous_response_not_found",
    "queue_full",
    "rate_limit_exceeded",
    "request_too_large",
    "restarted",
    "schema_not_enforceable",
    "sealing_failed",
    "server_error",
    "storage_full",
    "storage_limit",
    "store_full",
    "store_unavailable",
    "thread_not_found",
    "tokens_exceed_limit",
    "too_many_batches",
    "too_many_fields",
    "too_many_files",
    "too_many_requests",
    "too_many_uploads",
    "unknown_url",
    "unsupported_encoding",
    "unsupported_parameter",
    "upgrade_required",
];

/// Value of a label for all that has no value of its own.
pub(super) const OTHER: &str = "other";

/// Methods that requests are counted by, as in the conventions; any other one counts as `_OTHER`.
pub(super) const METHODS: [&str; 9] =
    ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

/// Operations of replies.
pub(super) const OPERATIONS: [&str; 8] =
    ["chat", "completion", "decision", "embedding", "message", "moderation", "response", "run"];
