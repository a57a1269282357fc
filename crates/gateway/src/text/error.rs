//! Errors as the official clients read them: status, JSON body and headers.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use nsbridge_base::chain;
use nsbridge_client::{Error, ErrorCode};
use nsbridge_protocol::NO_ROOM;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

/// Header by which the official clients decide whether to try again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Longest pause that the official clients accept in `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// Error of a request, for its client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ApiError {
    #[serde(with = "status_number")]
    status: StatusCode,
    kind: Cow<'static, str>,
    code: Option<String>,
    param: Option<String>,
    message: String,
    retry: Retry,
    /// True if the condition may pass, so that work that can wait is tried again.
    passes: bool,
}

/// Advice to the client about another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Retry {
    /// The official clients decide by the status.
    ByStatus,
    No,
    After(Duration),
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let (code, param, retry) = (None, None, Retry::ByStatus);
        let (kind, message) = (kind.into(), message.into());
        Self { status, kind, code, param, message, retry, passes: false }
    }

    /// Error in the field `param` of the request.
    pub(crate) fn field(param: &str, message: impl Into<String>) -> Self {
        Self::bad_request(message).about(param)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// Error for a thing that does not exist, or that another tenant has.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).coded("not_found")
    }

    pub(crate) fn no_model(model: &str) -> Self {
        let message = format!("the model `{model}` does not exist, or this key may not use it");
        Self::not_found(message).coded("model_not_found").about("model")
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
            .coded("invalid_api_key")
    }

    /// Error for a request by another name than those of this machine, or of a page of another host.
    pub(crate) fn foreign() -> Self {
        let message = "this gateway asks for no key, so it serves only requests to addresses such as \
                       http://localhost, and no web pages of other hosts; with [access] file it serves all";
        Self::new(StatusCode::FORBIDDEN, "permission_error", message).coded("foreign_origin")
    }

    /// Error for a part of the interface that this gateway does not serve.
    pub(crate) fn unserved(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "invalid_request_error", message)
            .coded("not_served")
            .final_()
    }

    pub(crate) fn wrong_method() -> Self {
        let message = "this page does not take this method";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// Error for a body that the client did not send in time.
    pub(crate) fn late_body() -> Self {
        let message = "the body of the request did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    pub(crate) fn no_broker() -> Self {
        Self::unavailable("the message broker cannot be reached", Duration::from_secs(1))
            .coded("broker_unavailable")
    }

    pub(crate) fn too_large(most: usize) -> Self {
        let message = format!("the body of the request has more than {most} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
            .coded("request_too_large")
    }

    pub(crate) fn limited(message: impl Into<String>, after: Duration) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .coded("rate_limit_exceeded")
            .again(after)
    }

    /// Error for a tenant whose requests have all the memory that it may have.
    pub(crate) fn crowded() -> Self {
        let message = "the requests of this tenant have all the memory that it may have: wait \
                       until some have ended, or send smaller ones";
        Self::limited(message, Duration::from_secs(2)).coded("memory_limit")
    }

    /// Error for a tenant whose stored replies have all the bytes that they may have.
    pub(crate) fn storage_limit() -> Self {
        let message = "the stored replies of this tenant have all the bytes that they may have: \
                       wait until some have expired, or send smaller requests";
        Self::limited(message, Duration::from_secs(10)).coded("storage_limit")
    }

    /// Error for a store that is full.
    pub(crate) fn store_full() -> Self {
        let message = "the gateway's store of replies is full: wait until some have expired";
        Self::unavailable(message, Duration::from_secs(10)).coded("store_full")
    }

    /// Error for a condition that passes by itself.
    pub(crate) fn unavailable(message: impl Into<String>, after: Duration) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).again(after)
    }

    pub(crate) fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", message)
            .coded("deadline_exceeded")
            .final_()
    }

    /// Failure that another try would meet again.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message).final_()
    }

    pub(crate) fn cancelled() -> Self {
        Self::bad_request("the request was canceled").coded("cancelled")
    }

    #[must_use]
    pub(crate) fn coded(self, code: &str) -> Self {
        Self { code: Some(code.to_owned()), ..self }
    }

    #[must_use]
    pub(crate) fn about(self, param: &str) -> Self {
        Self { param: Some(param.to_owned()), ..self }
    }

    fn again(self, after: Duration) -> Self {
        let after = after.clamp(Duration::from_secs(1), MAX_RETRY_AFTER);
        Self { retry: Retry::After(after), passes: true, ..self }
    }

    fn passing(self) -> Self {
        Self { passes: true, ..self }
    }

    fn final_(self) -> Self {
        Self { retry: Retry::No, ..self }
    }

    /// Returns the time after which work that can wait may try again; `None` if it need not try.
    pub(crate) fn passes_after(&self) -> Option<Duration> {
        match (self.passes, self.retry) {
            (false, _) => None,
            (true, Retry::After(after)) => Some(after),
            (true, _) => Some(Duration::ZERO),
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn code(&self) -> &str {
        self.code.as_deref().unwrap_or(&self.kind)
    }

    /// Returns the field of the request that is wrong.
    pub(crate) fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the object that the official clients look for in a body or in an event of a stream.
    pub(crate) fn json(&self) -> Value {
        json!({ "error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code
        } })
    }
}

/// Status of an error as a number, for the stores.
mod status_number {
    use axum::http::StatusCode;
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    pub(crate) fn serialize<S: Serializer>(
        status: &StatusCode,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(status.as_u16())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<StatusCode, D::Error> {
        StatusCode::from_u16(u16::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status.as_u16(), self.code())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.json())).into_response();
        let headers = response.headers_mut();
        match self.retry {
            Retry::ByStatus => {}
            Retry::No => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            Retry::After(after) => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("true"));
                headers.insert(header::RETRY_AFTER, after.as_secs().into());
            }
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(Outcome(self.code().to_owned()));
        // For interfaces whose errors have another shape.
        response.extensions_mut().insert(self);
        response
    }
}

/// Code of an error, for the log line of its request.
#[derive(Clone, Debug)]
pub(crate) struct Outcome(pub(crate) String);

impl From<Error> for ApiError {
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
            Error::Deadline { pieces: 0, .. } => unbegun(),
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
                let error =
                    Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message);
                error.coded("request_too_large")
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

impl From<crate::text::tools::Refused> for ApiError {
    fn from(refused: crate::text::tools::Refused) -> Self {
        Self::field(&refused.param, refused.message)
    }
}

impl ApiError {
    /// Error that a worker sent.
    fn of_worker(code: ErrorCode, message: String) -> Self {
        let internal = |message: String| Self::internal(message).coded(code.as_str());
        match code {
            ErrorCode::BadInput if message.contains(NO_ROOM) => {
                Self::bad_request(message).coded("context_length_exceeded")
            }
            ErrorCode::BadInput => {
                // The worker names the field first, in backquotes.
                let param = message.split('`').nth(1).map(str::to_owned);
                Self { param, ..Self::bad_request(message) }
            }
            ErrorCode::ReplyTooLarge => Self::bad_request(message).coded(code.as_str()),
            ErrorCode::Expired => unbegun(),
            ErrorCode::Deadline => Self::timeout("the reply was not complete at its deadline"),
            ErrorCode::Cancelled => Self::cancelled(),
            ErrorCode::Oversized => Self::too_large(8 << 20),
            ErrorCode::ModelFailed | ErrorCode::Poison => {
                internal("the model failed on this request".to_owned())
            }
            _ => internal(format!("no worker could open the request: {code}")),
        }
    }
}

/// Error of a reply that no worker began. A worker may be there later.
fn unbegun() -> ApiError {
    ApiError::timeout("no worker began the reply before its deadline").passing()
}

#[cfg(test)]
mod tests {
    use super::{ApiError, Error, ErrorCode};
    use axum::response::IntoResponse;

    #[track_caller]
    fn check(error: Error, status: u16, code: &str, retry: Option<&str>) {
        let error = ApiError::from(error);
        assert_eq!((error.status().as_u16(), error.code()), (status, code));
        let response = error.into_response();
        let header = response.headers().get("x-should-retry");
        assert_eq!(header.map(|value| value.to_str().unwrap()), retry);
    }

    fn failed(code: ErrorCode, message: &str) -> Error {
        Error::Failed { code, message: message.to_owned() }
    }

    #[test]
    fn a_client_is_told_whether_to_try_again() {
        let model = || "m".parse().unwrap();
        check(Error::NoSuchModel { model: model() }, 503, "no_worker", Some("true"));
        check(Error::QueueFull { model: model() }, 503, "queue_full", Some("true"));
        check(Error::Closed, 503, "broker_unavailable", Some("true"));
        let late = Error::Deadline { pieces: 0, hint: None };
        check(late, 504, "deadline_exceeded", Some("false"));
        let large = nsbridge_crypto::Error::Oversized { bytes: 9 << 20, limit: 8 << 20 };
        check(Error::Seal(large), 413, "request_too_large", None);
        check(
            Error::Seal(nsbridge_crypto::Error::NoRandomness),
            500,
            "sealing_failed",
            Some("false"),
        );
        check(failed(ErrorCode::Poison, ""), 500, "poison", Some("false"));
        check(failed(ErrorCode::ModelFailed, ""), 500, "model-failed", Some("false"));
        check(failed(ErrorCode::KeyScope, ""), 500, "key-scope", Some("false"));
        let long = format!("the prompt has 9 tokens, which {} of 8", nsbridge_protocol::NO_ROOM);
        check(failed(ErrorCode::BadInput, &long), 400, "context_length_exceeded", None);
        check(failed(ErrorCode::BadInput, "`top_p` must"), 400, "invalid_request_error", None);
    }

    #[test]
    fn work_that_can_wait_is_tried_again_until_a_worker_begins_it() {
        let passes = |error: Error| ApiError::from(error).passes_after().is_some();
        assert!(passes(Error::NoSuchModel { model: "m".parse().unwrap() }));
        assert!(passes(Error::Closed) && passes(failed(ErrorCode::Expired, "")));
        assert!(passes(Error::Deadline { pieces: 0, hint: None }));
        assert!(!passes(Error::Deadline { pieces: 1, hint: None }));
        assert!(!passes(failed(ErrorCode::Deadline, "")) && !passes(failed(ErrorCode::Poison, "")));
        assert!(!passes(failed(ErrorCode::BadInput, "`top_p` must")));
        let limited = ApiError::limited("", std::time::Duration::from_secs(9));
        assert_eq!(limited.passes_after().map(|after| after.as_secs()), Some(9));
    }

    #[test]
    fn the_field_that_a_worker_names_is_the_param() {
        let error = ApiError::from(failed(ErrorCode::BadInput, "`top_p` must be above 0"));
        assert_eq!(error.json()["error"]["param"], "top_p");
    }
}
