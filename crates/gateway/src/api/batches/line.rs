//! Line of a batch: sealed and submitted when its turn has come, and tried again while no worker
//! is there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use nsbridge_base::Backoff;
use nsbridge_base::random::random;
use nsbridge_gateway_replies::{Kind, RequestContext};
use nsbridge_protocol::Uuid;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::sleep;

use super::validate::LineRequest;
use crate::api::sse::push_escaped;
use crate::api::{chat, completions, embeddings, moderations, responses};
use crate::archive::batch::{Endpoint, Tokens};
use crate::archive::{Archive, Batch, BatchRecord, Line, Room};
use crate::error::{ApiError, named_for_path};
use crate::state::App;

/// Back-off between two tries of a line.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Line of an output file or of an error file.
#[derive(Serialize)]
struct Written<'a> {
    id: String,
    custom_id: Option<&'a str>,
    response: Option<WrittenResponse<'a>>,
    error: Option<WrittenError<'a>>,
}

#[derive(Serialize)]
struct WrittenResponse<'a> {
    status_code: u16,
    request_id: String,
    body: &'a RawValue,
}

#[derive(Serialize)]
struct WrittenError<'a> {
    code: &'a str,
    message: &'a str,
}

/// Part of an output line that counts its tokens.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Counted {
    response: Option<CountedResponse>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CountedResponse {
    body: CountedBody,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CountedBody {
    usage: Option<Value>,
}

/// Result of a line: the line of the output file or of the error file.
pub(super) struct Outcome {
    pub(super) is_ok: bool,
    pub(super) text: Vec<u8>,
}

impl Outcome {
    /// Returns the outcome of a line that was not answered.
    pub(super) fn unanswered(
        batch: Uuid,
        number: u64,
        custom_id: Option<&str>,
        code: &str,
        message: &str,
    ) -> Self {
        let error = Some(WrittenError { code, message });
        Self::new(
            false,
            &Written { id: name("batch_req", batch, number), custom_id, response: None, error },
        )
    }

    fn answered(batch: Uuid, number: u64, custom_id: &str, answer: &Answer) -> Self {
        let request_id = name("req", batch, number);
        let body = &*answer.body;
        let response = Some(WrittenResponse { status_code: answer.status, request_id, body });
        let (id, custom_id) = (name("batch_req", batch, number), Some(custom_id));
        let is_ok = (200..300).contains(&answer.status);
        Self::new(is_ok, &Written { id, custom_id, response, error: None })
    }

    fn new(is_ok: bool, written: &Written<'_>) -> Self {
        // Only a map whose keys are no texts cannot be written.
        let json = serde_json::to_string(written).unwrap_or_default();
        let mut text = String::with_capacity(json.len());
        push_escaped(&mut text, &json);
        Self { is_ok, text: text.into_bytes() }
    }

    /// Returns the tokens of the answer.
    pub(super) fn tokens(&self) -> Tokens {
        let counted: Counted = serde_json::from_slice(&self.text).unwrap_or_default();
        let usage = counted.response.and_then(|response| response.body.usage);
        let usage = usage.unwrap_or_default();
        let number = |pointers: [&str; 2]| {
            let found = pointers.iter().find_map(|pointer| usage.pointer(pointer)?.as_u64());
            found.unwrap_or_default()
        };
        Tokens {
            input: number(["/prompt_tokens", "/input_tokens"]),
            output: number(["/completion_tokens", "/output_tokens"]),
            cached: number([
                "/prompt_tokens_details/cached_tokens",
                "/input_tokens_details/cached_tokens",
            ]),
            reasoning: number([
                "/completion_tokens_details/reasoning_tokens",
                "/output_tokens_details/reasoning_tokens",
            ]),
        }
    }

    /// Returns the outcome as it is stored.
    fn stored(&self) -> Vec<u8> {
        [&[u8::from(self.is_ok)], self.text.as_slice()].concat()
    }

    /// Reads a stored outcome.
    pub(super) fn of_stored(mut stored: Vec<u8>) -> Option<Self> {
        let is_ok = *stored.first()? == 1;
        stored.remove(0);
        Some(Self { is_ok, text: stored })
    }
}

/// Returns an id that belongs to a line.
fn name(prefix: &str, batch: Uuid, number: u64) -> String {
    format!("{prefix}_{}{number:06x}", batch.simple())
}

/// Answer of an endpoint.
struct Answer {
    status: u16,
    body: Box<RawValue>,
}

/// Runs a line and stores its result. Returns when it is on disk.
pub(super) async fn run(
    app: Arc<App>,
    archive: Arc<Archive>,
    batch: Arc<Batch>,
    line: Line,
    room: Room,
) {
    let record = batch.record();
    let number = line.number;
    let named = format!("{}{number}", nsbridge_gateway_replies::Line::of(batch.id));
    let asked = nsbridge_gateway_replies::Line { name: named.clone(), until: record.deadline() };
    let outcome = match LineRequest::parse(&line, record.endpoint) {
        Ok(request) => {
            let answer = Box::pin(answer(&app, &archive, &record, &request, &asked)).await;
            Outcome::answered(batch.id, number, &request.custom_id, &answer)
        }
        // The file was checked before, so this is a line of another version.
        Err(error) => Outcome::unanswered(batch.id, number, None, error.code(), error.message()),
    };
    drop((line, room));
    let (id, stored, tokens) = (batch.id, outcome.stored(), outcome.tokens().output);
    let stored: Arc<[u8]> = stored.into();
    let mut pauses = BACKOFF.pauses();
    loop {
        let stored = stored.clone();
        let kept = archive.with_store(move |store| {
            store.edit(&[store.part(Kind::Batch, id, number, &stored)?])
        });
        if kept.await.is_ok() {
            break;
        }
        sleep(pauses.next(random())).await;
    }
    app.replies.forget_line(&named);
    let count = if outcome.is_ok { &batch.completed } else { &batch.failed };
    count.fetch_add(1, Ordering::Relaxed);
    batch.tokens.fetch_add(tokens, Ordering::Relaxed);
}

/// Asks the endpoint until it answers, or refuses for good.
async fn answer(
    app: &Arc<App>,
    archive: &Archive,
    record: &BatchRecord,
    request: &LineRequest,
    line: &nsbridge_gateway_replies::Line,
) -> Answer {
    let mut pauses = BACKOFF.pauses();
    loop {
        let response = match asked(app, archive, record, request, line).await {
            Ok(response) => response,
            Err(error) => error.into_response(),
        };
        let error = response.extensions().get::<ApiError>();
        let Some(after) = error.and_then(ApiError::passes_after) else {
            return read(named_for_path(response, record.endpoint.path())).await;
        };
        let code = error.map(ApiError::code).unwrap_or_default();
        tracing::debug!(code, "a line of a batch has to wait");
        sleep(after.max(pauses.next(random()))).await;
    }
}

/// Asks the endpoint once.
async fn asked(
    app: &Arc<App>,
    archive: &Archive,
    record: &BatchRecord,
    request: &LineRequest,
    line: &nsbridge_gateway_replies::Line,
) -> crate::error::Result<Response> {
    let holder = app.access.holder(&record.key);
    let holder = holder.map_err(|denied| ApiError::unauthorized(denied.to_string()))?;
    let caller = Arc::new(holder.for_batch());
    let (_, model) = request.model(record.endpoint, &app.models, &caller)?;
    let _turn = archive.turn(&record.tenant, &model).await?;
    let context = RequestContext { line: Some(line.clone()), ..RequestContext::default() };
    let (app, caller, context) = (State(app.clone()), Extension(caller), Extension(context));
    let body = Bytes::copy_from_slice(request.body.get().as_bytes());
    Ok(match record.endpoint {
        Endpoint::Chat => chat::create(app, caller, context, body).await.into_response(),
        Endpoint::Completions => {
            completions::create(app, caller, context, body).await.into_response()
        }
        Endpoint::Responses => responses::create(app, caller, context, body).await.into_response(),
        Endpoint::Embeddings => {
            embeddings::create(app, caller, context, body).await.into_response()
        }
        Endpoint::Moderations => {
            moderations::create(app, caller, context, body).await.into_response()
        }
    })
}

async fn read(response: Response) -> Answer {
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap_or_default();
    let body = serde_json::from_slice(&body).unwrap_or_else(|_| RawValue::NULL.to_owned());
    Answer { status, body }
}
