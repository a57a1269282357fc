//! Bodies of requests: read up to their limit, in memory that callers share.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::access::{ApiKeyId, Caller};
use crate::error::ApiError;
use crate::state::App;

/// Memory for the bodies of all requests while they arrive, and for those of one API key, in KiB. A
/// key that sends slowly leaves memory to the others.
const MEMORY: [usize; 2] = [256 << 10, 64 << 10];

/// Memory for bodies.
#[derive(Debug)]
pub(crate) struct Bodies {
    all: Arc<Semaphore>,
    keys: Mutex<HashMap<ApiKeyId, Arc<Semaphore>>>,
}

impl Default for Bodies {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MEMORY[0])), keys: Mutex::default() }
    }
}

impl Bodies {
    /// Waits for the memory of a body of this size at most.
    async fn room(&self, key: ApiKeyId, bytes: usize) -> Option<[OwnedSemaphorePermit; 2]> {
        let kib = u32::try_from((bytes / 1024 + 1).min(MEMORY[1])).ok()?;
        let own = {
            let new = || Arc::new(Semaphore::new(MEMORY[1]));
            self.keys.lock().entry(key).or_insert_with(new).clone()
        };
        let own = own.acquire_many_owned(kib).await.ok()?;
        let all = self.all.clone().acquire_many_owned(kib).await.ok()?;
        Some([own, all])
    }
}

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::{ApiKeyId, Bodies, MEMORY};

    #[tokio::test(start_paused = true)]
    async fn a_key_that_fills_its_memory_leaves_some_to_the_others() {
        let bodies = Bodies::default();
        let [one, two] = ["0123abcd", "4567cdef"].map(|id| id.parse::<ApiKeyId>().unwrap());
        let size = (8 << 20) - 1;
        let mut held = Vec::new();
        for _ in 0..MEMORY[1] / (8 << 10) {
            held.push(bodies.room(one, size).await.unwrap());
        }
        let second = Duration::from_secs(1);
        assert!(timeout(second, bodies.room(one, 0)).await.is_err());
        assert!(timeout(second, bodies.room(two, size)).await.is_ok());
        held.pop();
        assert!(timeout(second, bodies.room(one, size)).await.is_ok());
    }
}
