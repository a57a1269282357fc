//! Failure of a request or of its reply, as it is stored and as clients are told of it.

use std::fmt;
use std::time::Duration;

use nsbridge_base::chain;
use nsbridge_client::{Error, ErrorCode};
use nsbridge_gateway_access::{Limit, Refusal};
use nsbridge_protocol::NO_ROOM;
use serde::{Deserialize, Serialize};

/// Result of what may fail for a client.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Longest pause that the official clients accept in `Retry-After`.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// Shortest pause in `Retry-After`.
const MIN_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Maximum size of a request that a worker opens, in bytes.
const MAX_REQUEST_BYTES: usize = 8 << 20;

/// Kind of a failure. Its number is that of the HTTP status with its meaning (RFC 9110, section 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Request that is not valid.
    InvalidRequest,
    /// Thing that does not exist, or that another tenant has.
    NotFound,
    /// Request that is too large.
    TooLarge,
    /// Limit of a caller or of a tenant.
    Limited,
    /// Failure that another try would meet again.
    Internal,
    /// Condition that passes by itself.
    Unavailable,
    /// Reply that was not complete at its deadline.
    Timeout,
}

impl FailureKind {
    /// Returns the number of the kind.
    pub fn status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::NotFound => 404,
            Self::TooLarge => 413,
            Self::Limited => 429,
            Self::Internal => 500,
            Self::Unavailable => 503,
            Self::Timeout => 504,
        }
    }

    /// Returns the name of the kind in OpenAI's interface.
    pub fn error_type(self) -> &'static str {
        match self {
            Self::InvalidRequest | Self::NotFound | Self::TooLarge => "invalid_request_error",
            Self::Limited => "rate_limit_error",
            Self::Internal | Self::Unavailable | Self::Timeout => "server_error",
        }
    }

    fn of(status: u16) -> Self {
        let kinds = [
            Self::InvalidRequest,
            Self::NotFound,
            Self::TooLarge,
            Self::Limited,
            Self::Unavailable,
            Self::Timeout,
        ];
        kinds.into_iter().find(|kind| kind.status() == status).unwrap_or(Self::Internal)
    }
}

/// Advice to the client about another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Retry {
    /// The official clients decide by the status.
    ByStatus,
    /// Another try fails as well.
    No,
    /// Another try may succeed after this time.
    After(Duration),
}

/// Failure of a request or of its reply.
///
/// Its message is for the client, and has no text of the request but names of fields and types.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredFailure", into = "StoredFailure")]
pub struct Failure {
    kind: FailureKind,
    code: Option<String>,
    param: Option<String>,
    message: String,
    retry: Retry,
    /// True if the condition may pass, so that work that can wait is tried again.
    passes: bool,
}

impl Failure {
    /// Creates a failure without a code of its own.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let (message, retry) = (message.into(), Retry::ByStatus);
        Self { kind, code: None, param: None, message, retry, passes: false }
    }

    /// Failure of a request that is not valid.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(FailureKind::InvalidRequest, message)
    }

    /// Failure of a request for a thing that does not exist, or that another tenant has.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(FailureKind::NotFound, message).coded("not_found")
    }

    /// Failure of a request that must wait.
    pub fn limited(message: impl Into<String>, after: Duration) -> Self {
        Self::new(FailureKind::Limited, message).coded("rate_limit_exceeded").again(after)
    }

    /// Failure by a condition that passes by itself.
    pub fn unavailable(message: impl Into<String>, after: Duration) -> Self {
        Self::new(FailureKind::Unavailable, message).again(after)
    }

    /// Failure that another try would meet again.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Internal, message).last()
    }

    /// Failure of a reply that was not complete at its deadline.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Timeout, message).coded("deadline_exceeded").last()
    }

    /// Failure of a reply that its client canceled.
    pub fn cancelled() -> Self {
        Self::bad_request("the request was canceled").coded("cancelled")
    }

    /// Failure of a request with more than this number of bytes.
    pub fn too_large(limit_bytes: usize) -> Self {
        let message = format!("the body of the request has more than {limit_bytes} bytes");
        Self::new(FailureKind::TooLarge, message).coded("request_too_large")
    }

    /// Failure of a gateway without its broker.
    pub fn no_broker() -> Self {
        Self::unavailable("the message broker cannot be reached", Duration::from_secs(1))
            .coded("broker_unavailable")
    }

    /// Failure for a tenant whose requests have all the memory that it may have.
    pub fn crowded() -> Self {
        let message = "the requests of this tenant have all the memory that it may have: wait \
                       until some have ended, or send smaller ones";
        Self::limited(message, Duration::from_secs(2)).coded("memory_limit")
    }

    /// Failure for a tenant whose stored replies have all the bytes that they may have.
    pub(crate) fn storage_limit() -> Self {
        let message = "the stored replies of this tenant have all the bytes that they may have: \
                       wait until some have expired, or send smaller requests";
        Self::limited(message, Duration::from_secs(10)).coded("storage_limit")
    }

    /// Failure of a request for which the store has no room.
    pub(crate) fn store_full() -> Self {
        let message = "the gateway's store of replies is full: wait until some have expired";
        Self::unavailable(message, Duration::from_secs(10)).coded("store_full")
    }

    /// Failure of a reply whose gateway ends.
    pub(crate) fn draining() -> Self {
        let message = "the gateway shuts down: read the reply again";
        Self::unavailable(message, Duration::from_secs(1)).coded("draining")
    }

    /// Failure of a reply that no worker began. A worker may be there later.
    fn unbegun() -> Self {
        Self::timeout("no worker began the reply before its deadline").passing()
    }

    /// Failure of a request whose model has no worker yet. One is expected after this time.
    pub(crate) fn starting(model: &str, after: Duration) -> Self {
        let after = after.clamp(MIN_RETRY_AFTER, MAX_RETRY_AFTER);
        let seconds = after.as_secs();
        let message = format!(
            "the model `{model}` is starting: no worker of it runs yet, try again in {seconds} s"
        );
        Self::unavailable(message, after).coded("model_starting")
    }

    /// Sets the code.
    #[must_use]
    pub fn coded(self, code: &str) -> Self {
        Self { code: Some(code.to_owned()), ..self }
    }

    /// Sets the field of the request that is wrong.
    #[must_use]
    pub fn about(self, param: &str) -> Self {
        Self { param: Some(param.to_owned()), ..self }
    }

    /// Sets the sentence for the client.
    #[must_use]
    pub fn saying(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }

    /// Advises against another try.
    #[must_use]
    pub fn last(self) -> Self {
        Self { retry: Retry::No, ..self }
    }

    fn again(self, after: Duration) -> Self {
        let after = after.clamp(MIN_RETRY_AFTER, MAX_RETRY_AFTER);
        Self { retry: Retry::After(after), passes: true, ..self }
    }

    fn passing(self) -> Self {
        Self { passes: true, ..self }
    }

    /// Returns the kind.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Returns the code: its own, or else the name of its kind.
    pub fn code(&self) -> &str {
        self.own_code().unwrap_or_else(|| self.kind.error_type())
    }

    /// Returns the code that is its own.
    pub fn own_code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Returns the field of the request that is wrong.
    pub fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// Returns the sentence for the client.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the advice about another try.
    pub fn retry(&self) -> Retry {
        self.retry
    }

    /// Returns true if the fault is the client's.
    pub fn is_of_client(&self) -> bool {
        self.kind.status() < 500
    }

    /// Returns the time after which work that can wait may try again; `None` if it need not try.
    pub fn passes_after(&self) -> Option<Duration> {
        match (self.passes, self.retry) {
            (false, _) => None,
            (true, Retry::After(after)) => Some(after),
            (true, _) => Some(Duration::ZERO),
        }
    }

    /// Failure that a worker sent.
    fn of_worker(code: ErrorCode, message: String) -> Self {
        let internal = |message: String| Self::internal(message).coded(code.as_str());
        match code {
            ErrorCode::BadInput if message.contains(NO_ROOM) => {
                Self::bad_request(too_long(message)).coded("context_length_exceeded")
            }
            ErrorCode::BadInput => {
                // The worker names the field first, in backquotes.
                let param = message.split('`').nth(1).map(str::to_owned);
                Self { param, ..Self::bad_request(message) }
            }
            ErrorCode::ReplyTooLarge => Self::bad_request(message).coded(code.as_str()),
            ErrorCode::Expired => Self::unbegun(),
            ErrorCode::Deadline => Self::timeout("the reply was not complete at its deadline"),
            ErrorCode::Cancelled => Self::cancelled(),
            ErrorCode::Oversized => Self::too_large(MAX_REQUEST_BYTES),
            ErrorCode::ModelFailed | ErrorCode::Poison => {
                internal("the model failed on this request".to_owned())
            }
            _ => internal(format!("no worker could open the request: {code}")),
        }
    }
}

/// Returns the sentence about a prompt that is too long, in the words that clients look for.
fn too_long(message: String) -> String {
    let numbers = message.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    match numbers.collect::<Vec<_>>().as_slice() {
        [tokens, most] => {
            let least = if message.contains("at least") { "at least " } else { "" };
            format!(
                "this model's maximum context length is {most} tokens, but the prompt has \
                 {least}{tokens}"
            )
        }
        _ => message,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.status(), self.code())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let second = Duration::from_secs(1);
        match error {
            Error::NoSuchModel { .. } => {
                let message = "no worker has served this model yet: try again later";
                Self::unavailable(message, 5 * second).coded("no_worker").passing()
            }
            Error::QueueFull { .. } => {
                Self::unavailable("the queue of the model is full", 5 * second).coded("queue_full")
            }
            Error::Queue(nsbridge_queue::Error::Gateway { reason, .. }) => {
                Self::internal(format!("the gateway of this proxy refuses the request: {reason}"))
                    .coded("gateway_refused")
            }
            Error::Queue(_) | Error::Closed => {
                tracing::error!(error = chain(&error), "the message broker cannot be used");
                Self::no_broker()
            }
            Error::Deadline { pieces: 0, hint: Some(code) } => Self::timeout(format!(
                "no worker began the reply before its deadline: a worker reported `{code}`"
            ))
            .passing(),
            Error::Deadline { pieces: 0, .. } => Self::unbegun(),
            Error::Deadline { .. } | Error::Truncated { .. } => {
                Self::timeout("the reply was not complete at its deadline")
            }
            Error::TooLong { asked, limit } => Self::bad_request(format!(
                "the time limit is {} s, and {} s are the most",
                asked.as_secs(),
                limit.as_secs()
            )),
            Error::Failed { code, message } => Self::of_worker(code, message),
            Error::Seal(nsbridge_crypto::Error::Oversized { .. }) => {
                let message =
                    "the request has too much text for a frame in its sealed form: give less";
                Self::new(FailureKind::TooLarge, message).coded("request_too_large")
            }
            Error::Key(_) | Error::Keyring(_) | Error::Seal(_) => {
                tracing::error!(error = chain(&error), "a request cannot be sealed");
                Self::internal("the gateway cannot seal the request").coded("sealing_failed")
            }
            _ => {
                tracing::error!(error = chain(&error), "a reply cannot be read");
                Self::internal("the reply cannot be read").coded("bad_reply")
            }
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Limited { what, retry_after } => {
                let of = match what {
                    Limit::Requests => "requests per minute",
                    Limit::Tokens => "tokens per minute",
                    Limit::Concurrent => "concurrent requests",
                };
                let after = retry_after.as_secs().max(1);
                let message =
                    format!("the limit of {of} of this API key is reached: wait {after} s");
                Self::limited(message, retry_after)
            }
            refusal @ Refusal::TooLarge { .. } => {
                Self::bad_request(refusal.to_string()).coded("tokens_exceed_limit")
            }
        }
    }
}

/// Failure in the stores. Earlier versions read it as well.
#[derive(Serialize, Deserialize)]
struct StoredFailure {
    status: u16,
    kind: String,
    code: Option<String>,
    param: Option<String>,
    message: String,
    retry: Retry,
    passes: bool,
}

impl From<StoredFailure> for Failure {
    fn from(stored: StoredFailure) -> Self {
        let StoredFailure { status, code, param, message, retry, passes, .. } = stored;
        Self { kind: FailureKind::of(status), code, param, message, retry, passes }
    }
}

impl From<Failure> for StoredFailure {
    fn from(failure: Failure) -> Self {
        let (status, kind) = (failure.kind.status(), failure.kind.error_type().to_owned());
        let Failure { code, param, message, retry, passes, .. } = failure;
        Self { status, kind, code, param, message, retry, passes }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Error, ErrorCode, Failure};

    fn failed(code: ErrorCode, message: &str) -> Error {
        Error::Failed { code, message: message.to_owned() }
    }

    #[test]
    fn work_that_can_wait_is_tried_again_until_a_worker_begins_it() {
        let passes = |error: Error| Failure::from(error).passes_after().is_some();
        assert!(passes(Error::NoSuchModel { model: "m".parse().unwrap() }));
        assert!(passes(Error::Closed) && passes(failed(ErrorCode::Expired, "")));
        assert!(passes(Error::Deadline { pieces: 0, hint: None }));
        assert!(!passes(Error::Deadline { pieces: 1, hint: None }));
        assert!(!passes(failed(ErrorCode::Deadline, "")) && !passes(failed(ErrorCode::Poison, "")));
        assert!(!passes(failed(ErrorCode::BadInput, "`top_p` must")));
        let limited = Failure::limited("", Duration::from_secs(9));
        assert_eq!(limited.passes_after().map(|after| after.as_secs()), Some(9));
    }

    #[test]
    fn a_failure_is_read_as_the_version_before_stored_it() {
        let stored = r#"{"status":400,"kind":"invalid_request_error","code":null,"param":"top_p",
            "message":"`top_p` must be above 0","retry":"ByStatus","passes":false}"#;
        let read: Failure = serde_json::from_str(stored).unwrap();
        assert_eq!(read, Failure::bad_request("`top_p` must be above 0").about("top_p"));
        let stored = r#"{"status":503,"kind":"server_error","code":"queue_full","param":null,
            "message":"the queue of the model is full","retry":{"After":{"secs":5,"nanos":0}},
            "passes":true}"#;
        let read: Failure = serde_json::from_str(stored).unwrap();
        assert_eq!(read, Error::QueueFull { model: "m".parse().unwrap() }.into());
        assert_eq!(
            serde_json::to_value(&read).unwrap(),
            serde_json::from_str::<serde_json::Value>(stored).unwrap()
        );
    }
}
