//! Errors in the shape that Anthropic's clients read.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};

use crate::error::ApiError;

/// Header in which Anthropic's clients look for the id of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Code of an error by which Anthropic's clients know to send a conversation whole.
pub(super) const LOST_THREAD: &str = "thread_not_found";

/// Returns true for a path of Anthropic's interface.
pub(crate) fn is_path(path: &str) -> bool {
    path.strip_prefix("/v1/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the error as the data of a stream's event.
pub(super) fn event(error: &ApiError) -> Value {
    let message = too_long(error).unwrap_or_else(|| error.message().to_owned());
    let mut event =
        json!({ "type": "error", "error": { "type": kind(error), "message": message } });
    if error.code() == LOST_THREAD {
        event["error"]["details"] = json!({ "error_code": LOST_THREAD });
    }
    event
}

/// Returns the sentence about a prompt that is too long, by which Anthropic's clients know to shorten it.
fn too_long(error: &ApiError) -> Option<String> {
    if error.code() != "context_length_exceeded" {
        return None;
    }
    let numbers = error.message().split(|c: char| !c.is_ascii_digit());
    match numbers.filter(|digits| !digits.is_empty()).collect::<Vec<_>>().as_slice() {
        [most, tokens] => Some(format!("prompt is too long: {tokens} tokens > {most} maximum")),
        _ => None,
    }
}

/// Replaces the body of an error, and adds the id of the request. Other responses keep their body.
pub(crate) fn shaped(response: Response, request_id: &HeaderValue) -> Response {
    let (mut parts, mut body) = response.into_parts();
    if let Some(error) = parts.extensions.get::<ApiError>() {
        let mut json = event(error);
        json["request_id"] = request_id.to_str().unwrap_or_default().into();
        parts.headers.remove(header::CONTENT_LENGTH);
        body = Body::from(json.to_string());
    }
    parts.headers.insert(REQUEST_ID, request_id.clone());
    Response::from_parts(parts, body)
}

fn kind(error: &ApiError) -> &'static str {
    match error.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::to_bytes;
    use axum::http::HeaderValue;
    use axum::response::IntoResponse;
    use nsbridge_gateway_replies::Failure;
    use serde_json::{Value, json};

    use super::{ApiError, event, is_path, shaped};

    #[test]
    fn a_client_is_told_to_send_its_conversation_whole() {
        let error = ApiError::not_found("no").coded(super::LOST_THREAD);
        let details = json!({ "error_code": "thread_not_found" });
        assert_eq!(event(&error)["error"]["details"], details);
    }

    #[track_caller]
    fn check(error: &ApiError, kind: &str) {
        let expected = json!({ "type": kind, "message": error.message() });
        assert_eq!(event(error), json!({ "type": "error", "error": expected }));
    }

    #[test]
    fn a_prompt_that_is_too_long_is_told_in_the_words_of_anthropics_interface() {
        let message = "this model's maximum context length is 8 tokens, but the prompt has 9";
        let error: ApiError = Failure::bad_request(message).coded("context_length_exceeded").into();
        assert_eq!(event(&error)["error"]["message"], "prompt is too long: 9 tokens > 8 maximum");
    }

    #[test]
    fn each_status_has_the_type_of_anthropics_interface() {
        let second = Duration::from_secs(1);
        check(&ApiError::field("top_p", "no"), "invalid_request_error");
        check(&ApiError::unauthorized("no"), "authentication_error");
        check(&ApiError::no_model("m"), "not_found_error");
        check(&ApiError::wrong_method(), "invalid_request_error");
        check(&ApiError::late_body(), "timeout_error");
        check(&ApiError::too_large(1), "request_too_large");
        check(&ApiError::limited("no", second), "rate_limit_error");
        check(&ApiError::internal("no"), "api_error");
        check(&ApiError::unavailable("no", second), "overloaded_error");
        check(&Failure::timeout("no").into(), "timeout_error");
    }

    #[test]
    fn only_the_paths_of_the_interface_are_shaped() {
        for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/"] {
            assert!(is_path(path), "{path}");
        }
        for path in ["/v1/messagesx", "/v1/models", "/messages", "/v1/chat/completions"] {
            assert!(!is_path(path), "{path}");
        }
    }

    #[tokio::test]
    async fn a_shaped_error_keeps_its_status_and_its_advice() {
        let error = ApiError::unavailable("full", Duration::from_secs(7));
        let response = shaped(error.into_response(), &HeaderValue::from_static("req_1"));
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "7");
        assert_eq!(response.headers()["x-should-retry"], "true");
        assert_eq!(response.headers()["request-id"], "req_1");
        assert_eq!(response.headers()["content-type"], "application/json");
        let body = to_bytes(response.into_body(), 1 << 10).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let expected = json!({ "type": "overloaded_error", "message": "full" });
        assert_eq!(body, json!({ "type": "error", "error": expected, "request_id": "req_1" }));
    }

    #[tokio::test]
    async fn a_response_without_an_error_keeps_its_body() {
        let response = shaped("text".into_response(), &HeaderValue::from_static("req_1"));
        assert_eq!(response.headers()["request-id"], "req_1");
        assert_eq!(to_bytes(response.into_body(), 9).await.unwrap(), "text");
    }
}
