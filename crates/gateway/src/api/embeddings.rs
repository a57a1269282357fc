//! `/v1/embeddings`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use nsbridge_client::{EmbeddingInput, EmbeddingPiece, Request, Usage};
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::{Observer as _, Outcome, RequestContext};
use nsbridge_protocol::EmbeddingText;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::catalog::Task;
use crate::error::{ApiError, Result};
use crate::fields::{Bound, Fields, parse};
use crate::state::App;

/// Maximum number of texts of one request of the queue: their vectors, as numbers of 8,192 dimensions,
/// fit into a reply.
const TEXTS_PER_REQUEST: usize = 64;

/// Maximum number of requests of one call that run at the same time, so that a call does not fill the
/// queue alone.
const MAX_CONCURRENT_REQUESTS: usize = 16;

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

/// Splits the texts of a request into requests of the queue.
fn parts(input: EmbeddingInput) -> Vec<EmbeddingInput> {
    let part = |texts: &[EmbeddingText]| EmbeddingInput {
        input: texts.to_vec(),
        dimensions: input.dimensions,
        encoding_format: input.encoding_format,
        priority: input.priority,
    };
    if input.input.len() <= TEXTS_PER_REQUEST {
        return vec![input];
    }
    input.input.chunks(TEXTS_PER_REQUEST).map(part).collect()
}

/// Returns the error of a part, whose first text is this one of the whole request.
fn of_whole(error: ApiError, first: usize) -> ApiError {
    if first == 0 || error.status() != StatusCode::BAD_REQUEST {
        return error;
    }
    let renumbered = |text: &str| {
        let (before, rest) = text.split_once("input[")?;
        let (index, after) = rest.split_once(']')?;
        Some(format!("{before}input[{}]{after}", index.parse::<usize>().ok()? + first))
    };
    match renumbered(error.message()) {
        Some(message) => ApiError::field("input", message).coded(error.code()),
        None => error,
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
    if encoding_format.as_ref().is_some_and(|name| *name != "float" && *name != "base64") {
        let message = "`encoding_format` must be `float` or `base64`";
        return Err(ApiError::field("encoding_format", message));
    }
    fields.ignore(&["user"]);
    fields.finish()?;
    let input = Written { input, dimensions, encoding_format }.read()?;
    let most = (body.len() / 4) as u64;
    let reservation = caller.limiter.reserve(most)?;
    app.metrics.reserved(most);
    let meter = app.metrics.begin("embedding", &model);
    drop(body);
    let parts = parts(input).into_iter().enumerate().map(|(index, part)| {
        let (app, caller, context, model) = (&app, &caller, &context, &model);
        async move {
            let mut request = Request::new(model.clone(), caller.tenant.clone());
            request.trace = context.trace;
            let request = request.input(part).timeout(app.settings.timeout);
            let replied = async {
                let request = request.priority(caller.priority);
                let reply = app.client.submit::<EmbeddingPiece>(request).await?;
                context.submitted();
                app.whole(reply, model, context.patience).await
            };
            let error = |error| of_whole(error, index * TEXTS_PER_REQUEST);
            replied.await.map_err(error)
        }
    });
    let parts: Vec<_> = parts.collect();
    let replied: Result<Vec<_>> =
        stream::iter(parts).buffered(MAX_CONCURRENT_REQUESTS).try_collect().await;
    let replied = match replied {
        Ok(replied) => replied,
        Err(error) => {
            meter.end(Outcome::Failed);
            return Err(error);
        }
    };
    let (mut data, mut all) = (Vec::new(), Usage::default());
    for (pieces, summary) in replied {
        all.input_tokens += summary.usage.input_tokens;
        data.extend(pieces.into_iter().map(|piece| piece.embedding));
    }
    let tokens = all.input_tokens;
    meter.end(Outcome::Done(all));
    reservation.settle(tokens);
    app.metrics.settled(tokens);
    let data: Vec<Value> = data
        .into_iter()
        .enumerate()
        .map(|(index, embedding)| {
            json!({ "object": "embedding", "index": index, "embedding": embedding })
        })
        .collect();
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    Ok(Json(json!({ "object": "list", "data": data, "model": name, "usage": usage })))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ApiError, EmbeddingInput, of_whole, parts};

    #[test]
    fn texts_are_sent_in_parts_in_their_order_and_errors_have_their_places() {
        let texts: Vec<String> = (0..130).map(|index| index.to_string()).collect();
        let input: EmbeddingInput =
            serde_json::from_value(json!({ "input": texts, "dimensions": 3 })).unwrap();
        let sent = parts(input);
        let lengths: Vec<usize> = sent.iter().map(|part| part.input.len()).collect();
        assert_eq!(lengths, [64, 64, 2]);
        assert!(sent.iter().all(|part| part.dimensions == Some(3)));
        let first = |part: &EmbeddingInput| serde_json::to_value(&part.input[0]).unwrap();
        assert_eq!(sent.iter().map(first).collect::<Vec<_>>(), ["0", "64", "128"]);
        let error = of_whole(
            ApiError::field("input", "`input[1]` is too long").coded("context_length_exceeded"),
            64,
        );
        assert_eq!((error.message(), error.param()), ("`input[65]` is too long", Some("input")));
        assert_eq!(error.code(), "context_length_exceeded");
    }
}
