//! Rest of a request's body that a handler did not read.
//!
//! hyper closes a connection whose request was not read to its end. If bytes of the request arrive
//! after that, the system resets the connection, and the client loses the response that it has not
//! read yet. Many clients read no response before they have sent their whole request. So the rest is read
//! before a refusal is sent, as long as it is not large.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::time::timeout;

/// Maximum number of bytes that are read and dropped.
const MAX_DRAINED_BYTES: usize = 32 << 20;

/// Maximum time for the rest to arrive.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Body that a handler reads. When it is dropped before its end, the rest is in `left`.
struct TrackedBody {
    body: Option<BodyDataStream>,
    left: Arc<Mutex<Option<BodyDataStream>>>,
}

impl Stream for TrackedBody {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let next = body.poll_next_unpin(context);
        if matches!(next, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        next
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        *self.left.lock() = self.body.take();
    }
}

/// Answers a request, and reads what its handler left of the body.
pub(crate) async fn read(request: Request, next: Next) -> Response {
    if !may_be_read(request.headers()) {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let left = Arc::default();
    let lent = TrackedBody { body: Some(body.into_data_stream()), left: Arc::clone(&left) };
    let response = next.run(Request::from_parts(parts, Body::from_stream(lent))).await;
    let rest = left.lock().take();
    if let Some(rest) = rest {
        // What does not arrive in time is lost with the connection.
        let _ = timeout(DRAIN_TIMEOUT, drop_bytes(rest)).await;
    }
    response
}

/// Returns true for a request with a body that is not large. A client that waits for `100 Continue`
/// sends nothing after a refusal.
fn may_be_read(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let is_small = match length {
        Some(length) => {
            length.parse().is_ok_and(|length| (1..=MAX_DRAINED_BYTES).contains(&length))
        }
        None => headers.contains_key(header::TRANSFER_ENCODING),
    };
    is_small && !headers.contains_key(header::EXPECT)
}

/// Reads the rest up to its limit.
async fn drop_bytes(mut rest: BodyDataStream) {
    let mut dropped = 0;
    while let Some(Ok(bytes)) = rest.next().await {
        dropped += bytes.len();
        if dropped > MAX_DRAINED_BYTES {
            break;
        }
    }
}
