//! `/v1/models`, in OpenAI's form or in Anthropic's.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::{Extension, Json};
use jiff::Timestamp;
use nsbridge_gateway_access::Caller;
use serde_json::{Value, json};

use crate::catalog::{InputSchema, Model, Task};
use crate::error::Result;
use crate::ids;
use crate::state::App;

/// Header of Anthropic's clients, which tells them from OpenAI's at the paths that both have.
const ANTHROPIC: &str = "anthropic-version";

/// Lists the models that the caller may use.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    headers: HeaderMap,
) -> Json<Value> {
    let form = Form::of(&headers);
    let models: Vec<Value> =
        app.models.of(&caller).map(|(name, model)| form.entry(&app, name, model)).collect();
    let id = |model: Option<&Value>| model.map_or(Value::Null, |model| model["id"].clone());
    Json(match form {
        Form::OpenAi => json!({ "object": "list", "data": models }),
        Form::Anthropic => json!({
            "first_id": id(models.first()), "last_id": id(models.last()), "has_more": false,
            "data": models
        }),
    })
}

/// Shows one model, with the schema of its inputs.
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>> {
    let (_, model) = app.models.find(&name, &caller)?;
    let mut entry = Form::of(&headers).entry(&app, &name, &model);
    if let Some(InputSchema::Schema(schema)) = model.input_schema {
        entry["input_schema"] = schema;
    }
    Ok(Json(entry))
}

/// Form of a model's entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    OpenAi,
    Anthropic,
}

impl Form {
    fn of(headers: &HeaderMap) -> Self {
        if headers.contains_key(ANTHROPIC) { Self::Anthropic } else { Self::OpenAi }
    }

    fn entry(self, app: &App, name: &str, model: &Model) -> Value {
        let mut entry = match self {
            Self::OpenAi => json!({
                "id": name, "object": "model", "created": ids::seconds(app.started),
                "owned_by": "nsbridge"
            }),
            Self::Anthropic => {
                let created = i64::try_from(ids::seconds(app.started)).unwrap_or_default();
                let created = Timestamp::from_second(created).unwrap_or_default();
                json!({
                    "id": name, "type": "model", "display_name": name,
                    "created_at": created.to_string()
                })
            }
        };
        let context = match self {
            Self::OpenAi => "max_model_len",
            Self::Anthropic => "max_input_tokens",
        };
        if self == Self::OpenAi && model.task == Task::Generate {
            entry["architecture"] = json!({
                "input_modalities": model.input_modalities(), "output_modalities": ["text"]
            });
        }
        if let Some(tokens) = model.context {
            entry[context] = tokens.into();
        }
        entry
    }
}
