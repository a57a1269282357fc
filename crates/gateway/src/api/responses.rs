//! `/v1/responses`: create, stream, resume, cancel, delete.

pub(crate) mod echo;
mod items;
mod object;
pub(crate) mod request;
mod view;

use std::collections::HashSet;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use nsbridge_client::{ChatMessage, RequestId, TextInput};
use nsbridge_gateway_access::{Caller, Extent};
use nsbridge_gateway_replies::{Ask, Entry, ReplyEnd, RequestContext};
use serde::Deserialize;
use serde_json::{Value, json};

use self::echo::Object;
use self::items::KnownItems;
use self::object::{Reply, described};
use self::request::ResponsesRequest;
use self::view::ResponseView;
use crate::api::chat::reply::Message;
use crate::api::sse::{Events, stream_until};
use crate::api::tokens::{COUNT_TOKENS, read_prompt, without_reply};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::ids;
use crate::state::App;

/// Endpoint of the records of responses.
const KIND: &str = "response";

/// Creates a response.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    body: Bytes,
) -> Result<Response> {
    let mut request = parse(&app, &caller, &context, &body).await?;
    let ask = Ask {
        model: request.model.clone(),
        seed: request.seed,
        tokens: request.tokens(),
        // A stream that lasts long keeps no second copy.
        input: std::mem::take(&mut request.input),
        background: request.background,
        class: request.tier.class(&caller),
        patience: context.patience.filter(|_| !request.stream && !request.background),
    };
    let (log, reader) = app.replies.start(KIND, ask, &caller, &context, &body).await?;
    drop(body);
    let left_out = request.left_out.clone();
    if request.stream {
        let events = Events::default().obfuscated(request.obfuscated);
        let view = ResponseView::new(request, &log);
        return Ok(left_out.tell(stream_until(view, events, reader, app.hand_over())));
    }
    if !request.background {
        // A failure before the first piece is the failure of the request.
        reader.whole().await.map_err(|error| left_out.named(error.into()))?;
    }
    let response = Json(described(&request, &log, &Reply::of(&request, &log)));
    Ok(left_out.tell(response.into_response()))
}

/// Counts the tokens that the input of a response would have. A worker of the model counts them.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    body: Bytes,
) -> Result<Json<Value>> {
    let request = parse(&app, &caller, &context, &body).await?;
    let input = without_reply(request.input);
    let model = &request.model;
    let (_, tokens) = read_prompt(&app, &caller, &context, model, input, COUNT_TOKENS).await?;
    Ok(Json(json!({ "object": "response.input_tokens", "input_tokens": tokens })))
}

/// Refuses to compact a conversation: a summary by another prompt of the model is not the compacted
/// state that the interface promises.
pub(crate) async fn compact() -> ApiError {
    ApiError::unserved("conversations are not compacted: send fewer items as `input`")
}

/// Query of a GET.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Get {
    stream: bool,
    starting_after: Option<u64>,
    include_obfuscation: bool,
}

/// Shows a response, or streams it from an event on.
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    Path(id): Path<String>,
    query: Result<Query<Get>, QueryRejection>,
) -> Result<Response> {
    let refused = |_| {
        ApiError::bad_request(
            "the query is invalid: `stream` and `include_obfuscation` must be true or false, and \
             `starting_after` a number, each once",
        )
    };
    let Query(get) = query.map_err(refused)?;
    let entry = find(&app, &caller, &id).await?;
    context.take(memory(&entry))?;
    let mut request = ResponsesRequest::parse(entry.record.body.as_bytes(), &app.models, &caller)?;
    // The reply has it.
    request.input = TextInput::default();
    if !get.stream {
        return Ok(
            Json(described(&request, &entry.log, &Reply::of(&request, &entry.log))).into_response()
        );
    }
    let (log, reader) = app.replies.read(&entry, &caller).await?;
    context.keep(entry.record.body.len());
    let skip = get.starting_after.map_or(0, |after| after.saturating_add(1));
    let events = Events::after(skip).obfuscated(get.include_obfuscation);
    Ok(stream_until(ResponseView::new(request, &log), events, reader, app.hand_over()))
}

/// Stops a response, and shows it.
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    Path(id): Path<String>,
) -> Result<Json<Object>> {
    let entry = find(&app, &caller, &id).await?;
    context.take(memory(&entry))?;
    let request = ResponsesRequest::parse(entry.record.body.as_bytes(), &app.models, &caller)?;
    if !request.background {
        return Err(ApiError::bad_request("only a response in the background can be canceled"));
    }
    app.replies.stop(&entry).await?;
    Ok(Json(described(&request, &entry.log, &Reply::of(&request, &entry.log))))
}

/// Forgets a response.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let entry = find(&app, &caller, &id).await?;
    // A request that follows must not find it in a store.
    if !app.replies.remove(&entry).await {
        let after = std::time::Duration::from_secs(5);
        let message = "the response cannot be deleted from the store now";
        return Err(ApiError::unavailable(message, after).coded("store_unavailable"));
    }
    Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
}

/// Lists the items of a response's input.
pub(crate) async fn input_items(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let entry = find(&app, &caller, &id).await?;
    context.take(memory(&entry))?;
    let input = Fields::parse(entry.record.body.as_bytes())?.value("input")?;
    let items = items::shown(input, entry.record.id);
    let edge = |item: Option<&Value>| item.and_then(|item| item.get("id")).cloned();
    Ok(Json(json!({
        "object": "list", "first_id": edge(items.first()), "last_id": edge(items.last()),
        "has_more": false, "data": items
    })))
}

/// Finds a response that its client may read by its id: one with `store` false exists for retries alone.
async fn find(app: &App, caller: &Caller, id: &str) -> Result<Arc<Entry>> {
    let entry = app.replies.find(ids::of_response(id), caller, id).await?;
    let none = || ApiError::not_found("there is no such response");
    let is_kept = |entry: &Entry| -> Result<bool> {
        Ok(Fields::parse(entry.record.body.as_bytes())?.take("store")? != Some(false))
    };
    if entry.record.kind == KIND && is_kept(&entry)? { Ok(entry) } else { Err(none()) }
}

/// Parses a request, with the conversation and the items that it continues.
async fn parse(
    app: &Arc<App>,
    caller: &Caller,
    context: &RequestContext,
    body: &[u8],
) -> Result<ResponsesRequest> {
    let mut fields = Fields::parse(body)?;
    let given = fields.value("input")?.unwrap_or_default();
    let known = referred_items(app, caller, context, &given).await?;
    let mut request = ResponsesRequest::parse_with(fields, given, &known, &app.models, caller)?;
    follow_previous(app, caller, context, &mut request).await?;
    Ok(request)
}

/// Returns the items to which the input of a request refers.
async fn referred_items(
    app: &Arc<App>,
    caller: &Caller,
    context: &RequestContext,
    input: &Value,
) -> Result<KnownItems> {
    let mut known = KnownItems::new();
    let mut read: HashSet<RequestId> = HashSet::new();
    for (index, id) in items::references(input) {
        let unknown = || {
            let at = format!("input[{index}].id");
            let message = format!("`{at}` names no item of a complete response that is kept");
            ApiError::field(&at, message).coded("item_not_found")
        };
        let response = ids::of_item(&id).ok_or_else(unknown)?;
        if read.insert(response) {
            let entry = match find(app, caller, &ids::response(response)).await {
                Err(error) if error.status() == StatusCode::NOT_FOUND => return Err(unknown()),
                found => found?,
            };
            context.take(memory(&entry))?;
            known.extend(items_of(app, caller, &entry)?);
        }
        if !known.contains_key(&id) {
            return Err(unknown());
        }
    }
    Ok(known)
}

/// Returns the items of a complete response, and those of its input, by their ids.
fn items_of(app: &App, caller: &Caller, entry: &Entry) -> Result<KnownItems> {
    if !matches!(entry.log.end(), Some(ReplyEnd::Done(_))) {
        return Ok(KnownItems::new());
    }
    let body = entry.record.body.as_bytes();
    let request = ResponsesRequest::parse(body, &app.models, caller)?;
    let input = Fields::parse(body)?.value("input")?;
    // They are items of other responses.
    let others = input.as_ref().map(items::references).unwrap_or_default();
    let with_id = |item: Value| Some((item.get("id")?.as_str()?.to_owned(), item));
    let shown = items::shown(input, entry.record.id);
    let mut items: KnownItems = shown.into_iter().filter_map(with_id).collect();
    others.iter().for_each(|(_, id)| drop(items.remove(id)));
    items.extend(Reply::of(&request, &entry.log).items().into_iter().filter_map(with_id));
    Ok(items)
}

/// Puts the messages of the conversation that a request continues before its own.
async fn follow_previous(
    app: &Arc<App>,
    caller: &Caller,
    context: &RequestContext,
    request: &mut ResponsesRequest,
) -> Result<()> {
    let Some(previous) = request.previous.clone() else { return Ok(()) };
    let entry = match find(app, caller, &previous).await {
        Err(error) if error.status() == StatusCode::NOT_FOUND => {
            let message = "`previous_response_id` names no response that is kept";
            let error = ApiError::field("previous_response_id", message);
            return Err(error.coded("previous_response_not_found"));
        }
        found => found?,
    };
    context.take(memory(&entry))?;
    request.follow(history(app, caller, &entry)?)
}

/// Returns the memory, in bytes, that the request of a response takes when it is parsed again.
fn memory(entry: &Entry) -> usize {
    Extent::of(entry.record.body.as_bytes()).memory() + entry.record.bytes()
}

/// Returns the messages of a conversation up to the end of a response, without its instructions.
fn history(app: &App, caller: &Caller, entry: &Entry) -> Result<Vec<ChatMessage>> {
    if !matches!(entry.log.end(), Some(ReplyEnd::Done(_))) {
        return Err(ApiError::field(
            "previous_response_id",
            "the previous response is not complete",
        ));
    }
    let request = ResponsesRequest::parse(entry.record.body.as_bytes(), &app.models, caller)?;
    let mut messages = entry.record.input.messages.clone();
    if request.has_instructions {
        messages.remove(0);
    }
    let mut message = Message::default();
    let mut parser = request.parser();
    for piece in entry.log.pieces().0 {
        message.extend(parser.push(&piece.piece.text));
    }
    message.extend(parser.end());
    messages.push(items::of_reply(message, entry.record.id));
    Ok(messages)
}

/// Returns the id of a response in messages and events.
fn id(log: RequestId) -> String {
    ids::response(log)
}
