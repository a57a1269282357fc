//! Answers of a server that refuses a request.

use hyper::StatusCode;
use nsbridge_handler::{Error, quote};
use serde_json::Value;

use crate::http::{Answer, Http, HttpError};

/// Path of the list of models.
pub(crate) const MODELS: &str = "/v1/models";

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

/// Returns the error of a request that the server refuses.
///
/// Servers refuse what a request has, too, with the status of a wrong key or a model that is not found.
/// The list of models tells these apart.
///
/// The server's message may quote the request. It reaches the client only, and only if the request
/// is the fault.
pub(crate) async fn refusal(answer: &Answer, http: &Http, model: &str) -> Error {
    let (status, root) = (answer.status, http.root());
    match status {
        StatusCode::BAD_REQUEST
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::UNPROCESSABLE_ENTITY => of_request(answer),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
            match http.get(MODELS).await {
                Ok(list) => of_server(&list, root, model).unwrap_or_else(|| of_request(answer)),
                Err(error) => unanswered(error),
            }
        }
        _ if is_busy(status) => Error::retry(format!("the server at {root} has no room")),
        _ => Error::retry(format!("the server at {root} fails with status {}", status.as_u16())),
    }
}

/// Returns the error of a request that is at fault, with the server's sentence.
fn of_request(answer: &Answer) -> Error {
    let status = answer.status.as_u16();
    let unsaid = || format!("the server refuses the request with status {status}");
    Error::bad_input(message(answer).unwrap_or_else(unsaid))
}

/// Returns the error if the list of models tells that the server is at fault.
fn of_server(list: &Answer, root: &str, model: &str) -> Option<Error> {
    let has_model = |list: &Value| {
        list["data"].as_array().is_some_and(|cards| cards.iter().any(|card| card["id"] == model))
    };
    match list.status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Some(Error::fatal(no_key(root))),
        StatusCode::OK if list.json().is_some_and(|list| has_model(&list)) => None,
        StatusCode::OK | StatusCode::NOT_FOUND => Some(Error::fatal(format!(
            "the server at {root} no longer has the model {}",
            quote(model)
        ))),
        status => {
            let status = status.as_u16();
            Some(Error::retry(format!("{root}{MODELS} answers with status {status}")))
        }
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
