//! Bodies of requests: read up to their limit, in memory that callers share.

use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;

use crate::access::Caller;
use crate::error::ApiError;
use crate::state::App;

/// Reads the body up to its limit. An upload is read by its handler instead.
pub(crate) async fn read(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
    next: Next,
) -> Response {
    let most = app.settings.max_body;
    let (parts, body) = request.into_parts();
    let declared = declared(&parts.headers);
    if declared.is_some_and(|length| length > most) {
        return ApiError::too_large(most).into_response();
    }
    let read = async {
        let room = app.bodies.room(caller.id, declared.unwrap_or(most)).await;
        axum::body::to_bytes(body, most).await.map(|body| (body, room))
    };
    let (body, room): (Bytes, _) = match timeout(app.settings.body_timeout, read).await {
        Ok(Ok(read)) => read,
        Ok(Err(_)) => return ApiError::too_large(most).into_response(),
        Err(_) => return ApiError::late_body().into_response(),
    };
    // It has arrived; a reply may take minutes.
    drop(room);
    next.run(Request::from_parts(parts, Body::from(body))).await
}

fn declared(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
