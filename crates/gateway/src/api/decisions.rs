//! `/v1/decisions`: questions about a text, as a model with the task `judge` answers them.

mod answer;
mod input;
mod request;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use nsbridge_client::Usage;
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::RequestContext;
use serde_json::{Value, json};

use self::request::DecisionRequest;
use crate::api::judges::Asked;
use crate::error::Result;
use crate::state::App;

/// Answers questions about a text.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    body: Bytes,
) -> Result<impl IntoResponse> {
    let request = DecisionRequest::parse(&body, &app.models, &caller)?;
    let inputs = request.inputs();
    let model = &request.model;
    let asked = Asked { caller: &caller, context: &context, kind: "decision", model };
    let (scores, usage) = asked.judge(&app, inputs, |index| format!("questions[{index}]")).await?;
    let questions = request.questions.iter().enumerate().zip(&scores);
    let answers = questions.map(|((index, question), scores)| {
        answer::of(question, scores, &format!("questions[{index}]"))
    });
    let answers = answers.collect::<Result<Vec<Value>>>()?;
    Ok(Json(json!({ "answers": answers, "model": request.name, "usage": self::usage(&usage) })))
}

fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "input_tokens_details": { "cache_write_tokens": 0, "cached_tokens": usage.cached_tokens },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": usage.input_tokens + usage.output_tokens
    })
}
