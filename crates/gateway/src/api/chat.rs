//! `/v1/chat/completions`.

pub(crate) mod messages;
pub(crate) mod reply;
pub(crate) mod request;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::{Ask, RequestContext};

use self::reply::{Stream, whole};
use self::request::ChatRequest;
use crate::api::sse::{Events, stream};
use crate::error::Result;
use crate::state::App;

/// Answers a chat.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    body: Bytes,
) -> Result<Response> {
    let mut request = ChatRequest::parse(&body, &app.models, &caller)?;
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
    let (log, reader) = app.replies.start("chat", ask, &caller, &context, &body).await?;
    drop(body);
    if request.stream {
        let events = Events::default().obfuscated(request.obfuscated);
        let left_out = request.left_out.clone();
        let response = stream(Stream::new(request, &log), events, reader).await;
        return Ok(left_out.tell(response.map_err(|error| left_out.named(error))?));
    }
    let whole_reply = reader.whole().await;
    let (pieces, summary) = whole_reply.map_err(|error| request.left_out.named(error.into()))?;
    let response = Json(whole(&request, &log, &pieces, &summary)).into_response();
    Ok(request.left_out.tell(response))
}
