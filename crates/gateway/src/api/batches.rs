//! `/v1/batches`: files of requests that run when workers have time.

mod finish;
mod lifetime;
mod line;
mod request;
mod validate;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use nsbridge_gateway_access::Caller;
use nsbridge_gateway_replies::RequestContext;
use serde_json::Value;

pub(crate) use self::lifetime::resume;
use self::request::CreateBatch;
use crate::api::files::{self, Page, archive};
use crate::archive::batch::Status;
use crate::archive::file::Purpose;
use crate::archive::{Archive, Batch, BatchRecord};
use crate::error::{ApiError, Result};
use crate::state::App;

/// Time within which a repeated request to create a batch is a retry of the first one.
const RETRY: Duration = Duration::from_secs(600);

/// Maximum number of batches on a page of a list.
const MOST_LISTED: usize = 100;

/// Creates a batch.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(context): Extension<RequestContext>,
    body: Bytes,
) -> Result<Json<Value>> {
    let archive = archive(&app)?;
    let asked = CreateBatch::parse(&body)?;
    let (input, file) =
        archive.file(&asked.input, &caller.tenant).map_err(|error| error.about("input_file_id"))?;
    if file.purpose != Purpose::Batch {
        let message = "`input_file_id` must name a file of the purpose `batch`";
        return Err(ApiError::field("input_file_id", message));
    }
    let mut record = BatchRecord::new(caller.tenant.clone(), caller.id, asked.endpoint, input);
    record.expires_at = record.created_at.saturating_add(asked.window_s);
    (record.window, record.metadata) = (asked.window, asked.metadata);
    record.output_kept_s = asked.output_kept_s;
    if let Some(batch) = context.retries.then(|| repeated(archive, &record)).flatten() {
        return Ok(Json(batch.json()));
    }
    let batch = archive.add(record).await?;
    let shown = batch.json();
    lifetime::spawn(&app, archive, &batch);
    Ok(Json(shown))
}

/// Returns the batch that a retry has created before.
fn repeated(archive: &Archive, asked: &BatchRecord) -> Option<Arc<Batch>> {
    let since = asked.created_at.saturating_sub(RETRY.as_secs());
    let same = |made: &BatchRecord| {
        let of = |record: &BatchRecord| {
            (record.key.clone(), record.input, record.endpoint, record.window.clone())
        };
        made.created_at >= since && of(made) == of(asked) && made.metadata == asked.metadata
    };
    archive.batches(&asked.tenant).into_iter().rev().find(|batch| same(&batch.record()))
}

/// Shows a batch.
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    Ok(Json(archive(&app)?.batch(&name, &caller.tenant)?.json()))
}

/// Lists the batches of the tenant, the newest first.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    query: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Value>> {
    let page = files::page(query)?;
    let mut batches = archive(&app)?.batches(&caller.tenant);
    batches.reverse();
    let shown = batches.into_iter().map(|batch| (batch.name(), batch));
    let listed = page.of(shown, 20, MOST_LISTED)?;
    Ok(Json(listed.json(|batch| batch.json())))
}

/// Cancels a batch, and shows it. Lines that have ended stay in its output.
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let archive = archive(&app)?;
    let batch = archive.batch(&name, &caller.tenant)?;
    let cancel = |record: &mut BatchRecord| {
        let is_running = matches!(record.status, Status::Validating | Status::InProgress);
        if is_running {
            record.enter(Status::Cancelling);
        }
        is_running
    };
    let changed = archive.change(&batch, Vec::new(), cancel).await?;
    if !changed && batch.status() != Status::Cancelling {
        let status = batch.status().as_str();
        let message = format!("the batch is {status}: it cannot be canceled any more");
        return Err(ApiError::bad_request(message).coded("batch_not_cancellable"));
    }
    batch.stop.cancel();
    Ok(Json(batch.json()))
}
