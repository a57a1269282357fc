//! Errors as the official clients read them: status, JSON body and headers.

use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use nsbridge_client::Error;
use nsbridge_gateway_access::Refusal;
use nsbridge_gateway_replies::{Failure, FailureKind, Retry};
use serde_json::{Value, json};

use crate::field_names::Interface;

pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

/// Header by which the official clients decide whether to try again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Error of a request, for its client: a failure with its status and type in HTTP.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    failure: Failure,
}

impl ApiError {
    /// Error of HTTP alone, which no reply ends with.
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, failure: Failure::bad_request(message) }
    }

    /// Error in the field `param` of the request.
    pub(crate) fn field(param: &str, message: impl Into<String>) -> Self {
        Self::bad_request(message).about(param)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Failure::bad_request(message).into()
    }

    /// Error for a thing that does not exist, or that another tenant has.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Failure::not_found(message).into()
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
            .last()
    }

    pub(crate) fn wrong_method() -> Self {
        let message = "this page does not take this method";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// Error for a body in another encoding than the known ones.
    pub(crate) fn encoded(encoding: &HeaderValue, known: &[&str]) -> Self {
        let encoding: String =
            String::from_utf8_lossy(encoding.as_bytes()).chars().take(40).collect();
        let message = format!(
            "the body of the request has the encoding `{encoding}`, but only `{}` can be read: send it as it \
             is, or in one of them",
            known.join("`, `")
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
            .coded("unsupported_encoding")
    }

    /// Error for a body that the client did not send in time.
    pub(crate) fn late_body() -> Self {
        let message = "the body of the request did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    pub(crate) fn too_large(limit_bytes: usize) -> Self {
        Failure::too_large(limit_bytes).into()
    }

    pub(crate) fn limited(message: impl Into<String>, after: Duration) -> Self {
        Failure::limited(message, after).into()
    }

    /// Error for a tenant whose requests have all the memory that it may have.
    pub(crate) fn crowded() -> Self {
        Failure::crowded().into()
    }

    /// Error for a condition that passes by itself.
    pub(crate) fn unavailable(message: impl Into<String>, after: Duration) -> Self {
        Failure::unavailable(message, after).into()
    }

    /// Failure that another try would meet again.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Failure::internal(message).into()
    }

    #[must_use]
    pub(crate) fn coded(self, code: &str) -> Self {
        Self { failure: self.failure.coded(code), ..self }
    }

    #[must_use]
    pub(crate) fn about(self, param: &str) -> Self {
        Self { failure: self.failure.about(param), ..self }
    }

    /// Returns the error with another message.
    #[must_use]
    pub(crate) fn saying(self, message: String) -> Self {
        Self { failure: self.failure.saying(message), ..self }
    }

    /// Returns the error with the names of an interface's fields.
    #[must_use]
    pub(crate) fn named_for(self, interface: Interface) -> Self {
        Self { failure: interface.named(self.failure), ..self }
    }

    fn last(self) -> Self {
        Self { failure: self.failure.last(), ..self }
    }

    /// Returns the time after which work that can wait may try again; `None` if it need not try.
    pub(crate) fn passes_after(&self) -> Option<Duration> {
        self.failure.passes_after()
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn code(&self) -> &str {
        self.failure.own_code().unwrap_or(self.kind)
    }

    /// Returns the field of the request that is wrong.
    pub(crate) fn param(&self) -> Option<&str> {
        self.failure.param()
    }

    pub(crate) fn message(&self) -> &str {
        self.failure.message()
    }

    /// Returns the object that the official clients look for in a body or in an event of a stream.
    pub(crate) fn json(&self) -> Value {
        json!({ "error": {
            "message": self.message(), "type": self.kind, "param": self.param(),
            "code": self.failure.own_code()
        } })
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let status = match failure.kind() {
            FailureKind::InvalidRequest => StatusCode::BAD_REQUEST,
            FailureKind::NotFound => StatusCode::NOT_FOUND,
            FailureKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            FailureKind::Limited => StatusCode::TOO_MANY_REQUESTS,
            FailureKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            FailureKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            FailureKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        };
        Self { status, kind: failure.kind().error_type(), failure }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Failure::from(error).into()
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Failure::from(refusal).into()
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
        match self.failure.retry() {
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

/// Code of the error about a field that is not supported.
pub(crate) const UNSUPPORTED: &str = "unsupported_parameter";

/// Names the fields in the body of an error as the interface of the path does. Other responses keep their
/// body.
pub(crate) fn named_for_path(mut response: Response, path: &str) -> Response {
    let error = response.extensions().get::<ApiError>();
    // A field that is not supported has the name that the client gave it.
    let error = error.filter(|error| error.code() != UNSUPPORTED);
    if let Some((interface, error)) = Interface::of(path).zip(error) {
        let error = error.clone().named_for(interface);
        *response.body_mut() = Body::from(error.json().to_string());
        response.headers_mut().remove(header::CONTENT_LENGTH);
        response.extensions_mut().insert(error);
    }
    response
}

/// Code of an error, for the log line of its request.
#[derive(Clone, Debug)]
pub(crate) struct Outcome(pub(crate) String);

impl From<nsbridge_reply_text::tools::Refused> for ApiError {
    fn from(refused: nsbridge_reply_text::tools::Refused) -> Self {
        Self::field(&refused.param, refused.message)
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;
    use nsbridge_client::ErrorCode;

    use super::{ApiError, Error};

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
        let told = "this model's maximum context length is 8 tokens, but the prompt has 9";
        assert_eq!(ApiError::from(failed(ErrorCode::BadInput, &long)).message(), told);
        check(failed(ErrorCode::BadInput, &long), 400, "context_length_exceeded", None);
        check(failed(ErrorCode::BadInput, "`top_p` must"), 400, "invalid_request_error", None);
    }

    #[test]
    fn the_field_that_a_worker_names_is_the_param() {
        let error = ApiError::from(failed(ErrorCode::BadInput, "`top_p` must be above 0"));
        assert_eq!(error.json()["error"]["param"], "top_p");
    }
}
