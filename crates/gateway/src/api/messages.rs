//! `/v1/messages`: Anthropic's Messages API, and `/v1/messages/count_tokens`.

mod content;
pub(crate) mod error;
mod reply;
pub(crate) mod request;
#[cfg(test)]
mod tests;
mod tools;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::{Ask, RequestContext};
use serde_json::{Value, json};

use self::reply::{MessageView, whole};
use self::request::MessagesRequest;
use crate::api::sse::{Events, stream};
use crate::api::tokens::{COUNT_TOKENS, read_prompt, without_reply};
use crate::error::Result;
use crate::state::App;

/// Answers a message.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    body: Bytes,
) -> Result<Response> {
    let mut request = MessagesRequest::parse(&body, &app.models, &caller)?;
    let stop = request.input.stop.clone();
    let ask = Ask {
        model: request.model.clone(),
        seed: request.seed,
        tokens: request.tokens(),
        // A stream that lasts long keeps no second copy.
        input: std::mem::take(&mut request.input),
        background: false,
        class: request.tier.class(&caller),
        patience: context.patience.filter(|_| !request.stream),
    };
    let (log, reader) = app.replies.start("message", ask, &caller, &context, &body).await?;
    request.input.stop = stop;
    drop(body);
    if request.stream {
        let left_out = request.left_out.clone();
        let view = MessageView::new(request, log.id);
        let response = stream(view, Events::default(), reader).await;
        return Ok(left_out.tell(response.map_err(|error| left_out.named(error))?));
    }
    let whole_reply = reader.whole().await;
    let (pieces, summary) = whole_reply.map_err(|error| request.left_out.named(error.into()))?;
    let pieces = pieces.iter().map(|piece| &piece.piece);
    let response = Json(whole(&request, log.id, pieces, &summary)).into_response();
    Ok(request.left_out.tell(response))
}

/// Counts the tokens of a prompt. The worker that has the model's vocabulary counts them.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    body: Bytes,
) -> Result<Json<Value>> {
    let request = MessagesRequest::parse_count(&body, &app.models, &caller)?;
    let input = without_reply(request.input);
    let model = &request.model;
    let (_, tokens) = read_prompt(&app, &caller, &context, model, input, COUNT_TOKENS).await?;
    Ok(Json(json!({ "input_tokens": tokens })))
}
