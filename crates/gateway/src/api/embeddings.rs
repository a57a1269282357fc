//! `/v1/embeddings`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use nsbridge_client::{EmbeddingInput, EmbeddingPiece, Request};
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::{Observer as _, Outcome, RequestContext};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::catalog::Task;
use crate::error::{ApiError, Result};
use crate::fields::{Bound, Fields, parse};
use crate::state::App;

/// Input as the worker reads it.
#[derive(Serialize)]
struct Written<'a> {
    input: &'a RawValue,
    dimensions: Option<u32>,
    encoding_format: Option<Value>,
}

impl Written<'_> {
    /// Reads the input without building its values, of which a list of token ids has many.
    fn read(&self) -> Result<EmbeddingInput> {
        let written = serde_json::value::to_raw_value(self);
        let written = written.map_err(|_| ApiError::field("input", "`input` cannot be read"))?;
        parse("input", &written)
    }
}

/// Makes vectors of texts.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    body: Bytes,
) -> Result<impl IntoResponse> {
    let mut fields = Fields::parse(&body)?;
    let name = app.models.named(&mut fields)?;
    let (model, _) = app.models.serving(&name, &caller, Task::Embed)?;
    let input = fields.raw("input", Bound::TOKENS)?;
    let input = input.ok_or_else(|| ApiError::field("input", "`input` is missing"))?;
    let dimensions: Option<u32> = fields.take("dimensions")?;
    let encoding_format = fields.value("encoding_format")?;
    fields.ignore(&["user"]);
    fields.finish()?;
    let input = Written { input, dimensions, encoding_format }.read()?;
    let most = (body.len() / 4) as u64;
    let reservation = caller.limiter.reserve(most)?;
    app.metrics.reserved(most);
    let meter = app.metrics.begin("embedding", &model);
    let request =
        Request::new(model, caller.tenant.clone()).input(input).timeout(app.settings.timeout);
    let request = match context.trace {
        Some(trace) => request.trace(trace),
        None => request,
    };
    let request = request.priority(caller.priority);
    drop(body);
    let replied = async {
        let reply = app.client.submit::<EmbeddingPiece>(request).await?;
        context.submitted();
        reply.collect().await
    };
    let (pieces, summary) = match replied.await {
        Ok(replied) => replied,
        Err(error) => {
            meter.end(Outcome::Failed);
            return Err(error.into());
        }
    };
    let tokens = summary.usage.input_tokens;
    meter.end(Outcome::Done(summary.usage));
    reservation.settle(tokens);
    app.metrics.settled(tokens);
    let data: Vec<Value> = pieces
        .into_iter()
        .map(|piece| {
            json!({ "object": "embedding", "index": piece.index, "embedding": piece.embedding })
        })
        .collect();
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    Ok(Json(json!({ "object": "list", "data": data, "model": name, "usage": usage })))
}
