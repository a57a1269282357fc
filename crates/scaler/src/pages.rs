//! Pages of a scaler: the numbers for KEDA's `metrics-api`, the metrics, and the health.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use nsbridge_protocol::ModelName;
use parking_lot::Mutex;
use serde_json::json;

use crate::metrics::Metrics;
use crate::model::Decided;

/// Decisions as the pages show them. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Pages(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Time after which a decision is no longer shown.
    stale_after: Duration,
    models: Mutex<BTreeMap<ModelName, Shown>>,
    metrics: Metrics,
}

/// State of a model.
#[derive(Clone, Debug)]
pub(crate) enum Shown {
    /// No decision has been made yet.
    Nothing,
    /// Another process decides.
    Follows,
    /// Last decision of this process.
    Decided(Box<Decided>),
}

impl Pages {
    pub(crate) fn new<'a>(
        models: impl Iterator<Item = &'a ModelName>,
        stale_after: Duration,
        metrics: Metrics,
    ) -> Self {
        let models = models.map(|model| (model.clone(), Shown::Nothing)).collect();
        Self(Arc::new(Inner { stale_after, models: Mutex::new(models), metrics }))
    }

    /// Shows the state of a model.
    pub(crate) fn show(&self, model: &ModelName, shown: Shown) {
        self.0.models.lock().insert(model.clone(), shown);
    }

    /// Returns the routes.
    pub(crate) fn routes(self) -> Router {
        Router::new()
            .route("/v1/desired/{model}", get(desired))
            .route("/metrics", get(metrics))
            .route("/livez", get(async || "the scaler runs\n"))
            .route("/readyz", get(ready))
            .with_state(self)
    }

    /// Returns the last decision on a model, or the reason why there is none.
    fn fresh(&self, shown: &Shown) -> Result<Decided, String> {
        match shown {
            Shown::Nothing => Err("no decision has been made yet".to_owned()),
            Shown::Follows => Err("another scaler decides for this model".to_owned()),
            Shown::Decided(decided) => {
                let age = decided.at.elapsed();
                let fresh = age < self.0.stale_after;
                fresh.then(|| (**decided).clone()).ok_or_else(|| {
                    format!("the last decision was made {} s ago: see the log", age.as_secs())
                })
            }
        }
    }
}

/// Answers with the number of workers. KEDA reads the field `desired`.
async fn desired(State(pages): State<Pages>, Path(model): Path<String>) -> Response {
    let name = model.parse::<ModelName>().ok();
    let known = name.and_then(|name| pages.0.models.lock().get(&name).cloned());
    let Some(shown) = known else {
        let error = json!({ "error": format!("the configuration has no model `{model}`") });
        return (StatusCode::NOT_FOUND, Json(error)).into_response();
    };
    match pages.fresh(&shown) {
        Ok(decided) => Json(json!({
            "model": model,
            "desired": decided.decision.desired,
            "text": decided.decision.to_string(),
            "age_s": decided.at.elapsed().as_secs(),
            "backlog_s": decided.backlog_s,
            "observation": decided.observation,
        }))
        .into_response(),
        Err(error) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "error": error }))).into_response()
        }
    }
}

async fn metrics(State(pages): State<Pages>) -> Response {
    ([(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)], pages.0.metrics.text()).into_response()
}

/// Answers 200 while every model has a fresh decision of this process.
async fn ready(State(pages): State<Pages>) -> Response {
    let models = pages.0.models.lock().clone();
    let failed: BTreeMap<_, _> = models
        .iter()
        .filter_map(|(model, shown)| Some((model.to_string(), pages.fresh(shown).err()?)))
        .collect();
    let status = if failed.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": failed.is_empty(), "models": failed }))).into_response()
}
