//! `/v1/chat/completions`.

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
    };
    let (log, reader) = app.replies.start("chat", ask, &caller, &context, &body).await?;
    drop(body);
    if request.stream {
        let events = Events::default().obfuscated(request.obfuscated);
        return Ok(stream(Stream::new(request, &log), events, reader).into_response());
    }
    let (pieces, summary) = reader.whole().await?;
    Ok(Json(whole(&request, &log, &pieces, &summary)).into_response())
}
