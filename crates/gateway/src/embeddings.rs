//! `/v1/embeddings`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use nsbridge_client::{EmbeddingInput, EmbeddingPiece, Request};
use serde_json::{Value, json};

use crate::access::Caller;
use crate::catalog::Task;
use crate::class::{Class, Tier};
use crate::error::Result;
use crate::fields::Fields;
use crate::limits;
use crate::metrics::End;
use crate::runs::Client;
use crate::state::App;

/// Makes vectors of texts.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(client): Extension<Client>,
    body: Bytes,
) -> Result<impl IntoResponse> {
    let mut fields = Fields::parse(&body)?;
    let name = app.models.named(&mut fields)?;
    let (model, _) = app.models.serving(&name, &caller, Task::Embed)?;
    let input: Value = fields.need("input")?;
    let dimensions: Option<u32> = fields.take("dimensions")?;
    let encoding = fields.value("encoding_format");
    fields.ignore(&["user"]);
    fields.finish()?;
    let asked = json!({ "input": input, "dimensions": dimensions, "encoding_format": encoding });
    let input: EmbeddingInput = crate::fields::read("input", asked)?;
    let most = (body.len() / 4) as u64;
    let reservation = limits::reserve(&caller, most)?;
    app.metrics.reserved(most);
    let meter = app.metrics.reply("embedding", &model);
    let request =
        Request::new(model, caller.tenant.clone()).input(input).timeout(app.settings.timeout);
    let request = match client.trace {
        Some(trace) => request.trace(trace),
        None => request,
    };
    let request = Class::of(&caller, Tier::Unnamed).set(request);
    let replied = async { app.client.submit::<EmbeddingPiece>(request).await?.collect().await };
    let (pieces, summary) = match replied.await {
        Ok(replied) => replied,
        Err(error) => {
            meter.end(End::Failed);
            return Err(error.into());
        }
    };
    let tokens = summary.usage.input_tokens;
    meter.end(End::Done(summary.usage));
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
