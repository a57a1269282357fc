//! `/v1/files`: inputs and outputs of batches.

mod page;
mod upload;

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::{StreamExt, stream};
use nsbridge_gateway_access::Caller;
use serde_json::{Value, json};

pub(crate) use self::page::{Page, page};
pub(crate) use self::upload::{Expiry, upload};
use crate::archive::Archive;
use crate::error::{ApiError, Result};
use crate::ids;
use crate::state::App;

/// Maximum number of files on a page of a list.
const MOST_LISTED: usize = 10_000;

/// Returns the archive.
///
/// # Errors
///
/// Returns an error if the gateway has no store.
pub(crate) fn archive(app: &App) -> Result<&Arc<Archive>> {
    app.archive.as_ref().ok_or_else(|| {
        ApiError::unserved("files and batches need [store] in the configuration of the gateway")
    })
}

/// Shows a file.
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let (id, file) = archive(&app)?.file(&name, &caller.tenant)?;
    Ok(Json(file.json(id)))
}

/// Sends the content of a file.
pub(crate) async fn content(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(name): Path<String>,
) -> Result<Response> {
    let archive = archive(&app)?;
    let (id, file) = archive.file(&name, &caller.tenant)?;
    let archive = archive.clone();
    let chunks = stream::iter(0..file.chunks).then(move |at| {
        let archive = archive.clone();
        async move { archive.chunk(id, at).await.map(Bytes::from) }
    });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, file.bytes.to_string()),
    ];
    Ok((headers, Body::from_stream(chunks)).into_response())
}

/// Lists the files of the tenant.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    query: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Value>> {
    let page = page(query)?;
    let mut files = archive(&app)?.files(&caller.tenant);
    if page.newest_first()? {
        files.reverse();
    }
    let purpose = page.purpose();
    let shown = files
        .into_iter()
        .filter(|(_, file)| purpose.is_none_or(|purpose| purpose == file.purpose.as_str()));
    let listed =
        page.of(shown.map(|(id, file)| (ids::file(id), (id, file))), 10_000, MOST_LISTED)?;
    Ok(Json(listed.json(|(id, file)| file.json(*id))))
}

/// Deletes a file.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let archive = archive(&app)?;
    let (id, _) = archive.file(&name, &caller.tenant)?;
    archive.delete(id).await?;
    Ok(Json(json!({ "id": name, "object": "file", "deleted": true })))
}

/// Returns the beginning of a text of the client, for a message.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}
