//! Answers of a server that refuses a request.

use hyper::StatusCode;
use nsbridge_handler::Error;
use serde_json::Value;

use crate::http::{Answer, HttpError};

/// Maximum length of a server's message to a client, in characters.
const MOST_CHARACTERS: usize = 2000;

/// Returns the error of a request that got no answer. Another try may find the server again.
pub(crate) fn unanswered(error: HttpError) -> Error {
    Error::retry(error)
}

/// Returns true if the server has no room for a request now, and may have some later.
pub(crate) fn is_busy(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

/// Returns the error of a request that the server at `root` refuses.
///
/// The server's message may quote the request. It reaches the client only, and only if the request
/// is the fault.
pub(crate) fn refusal(answer: &Answer, root: &str) -> Error {
    let status = answer.status;
    match status {
        StatusCode::BAD_REQUEST
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::UNPROCESSABLE_ENTITY => {
            let unsaid =
                || format!("the server refuses the request with status {}", status.as_u16());
            Error::bad_input(message(answer).unwrap_or_else(unsaid))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Error::fatal(no_key(root)),
        StatusCode::NOT_FOUND => Error::fatal(format!(
            "the server at {root} no longer has the model or the endpoint that it had at the start"
        )),
        _ if is_busy(status) => Error::retry(format!("the server at {root} has no room")),
        _ => Error::retry(format!("the server at {root} fails with status {}", status.as_u16())),
    }
}

/// Returns the sentence for an API key that is wrong or missing.
pub(crate) fn no_key(root: &str) -> String {
    format!("the server at {root} refuses the API key: correct [handler] api_key_file")
}

/// Returns the error that a server reports inside of a stream.
pub(crate) fn reported(failure: &Value, root: &str) -> Error {
    let code = failure.get("code").and_then(Value::as_u64).unwrap_or(500);
    match (code, said(failure)) {
        (400 | 413 | 422, Some(said)) => Error::bad_input(said),
        _ => Error::retry(format!("the server at {root} reports a failure in its reply")),
    }
}

/// Returns the message of a refusal, in the shapes of OpenAI, SGLang and FastAPI.
fn message(answer: &Answer) -> Option<String> {
    let body: Value = answer.json()?;
    if let Some(said) = said(body.get("error").unwrap_or(&body)) {
        return Some(said);
    }
    let detail = body.get("detail")?;
    let first = detail.get(0).and_then(|first| first.get("msg")).unwrap_or(detail);
    first.as_str().map(short)
}

fn said(failure: &Value) -> Option<String> {
    let said = failure.as_str().or_else(|| failure.get("message")?.as_str());
    said.map(short)
}

fn short(said: &str) -> String {
    said.chars().take(MOST_CHARACTERS).collect()
}
