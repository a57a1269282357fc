//! `/v1/models`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use nsbridge_gateway_access::Caller;
use serde_json::{Value, json};

use crate::catalog::Model;
use crate::error::Result;
use crate::ids;
use crate::state::App;

/// Lists the models that the caller may use.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
) -> Json<Value> {
    let models: Vec<Value> =
        app.models.of(&caller).map(|(name, model)| shown(&app, name, model)).collect();
    Json(json!({ "object": "list", "data": models }))
}

/// Shows one model.
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let (_, model) = app.models.find(&name, &caller)?;
    Ok(Json(shown(&app, &name, &model)))
}

fn shown(app: &App, name: &str, model: &Model) -> Value {
    let mut shown = json!({
        "id": name, "object": "model", "created": ids::seconds(app.started), "owned_by": "nsbridge"
    });
    if let Some(context) = model.context {
        shown["max_model_len"] = context.into();
    }
    shown
}
