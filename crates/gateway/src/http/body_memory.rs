//! Bodies of requests: read up to their limit, in memory that tenants share.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use futures_util::StreamExt;
use nsbridge_gateway_access::{Caller, Extent, Held, MAX_SMALL_BODY_BYTES};
use nsbridge_gateway_replies::RequestContext;
use tokio::time::{Instant, timeout};

use crate::api::sse::streams_events;
use crate::error::{ApiError, Result};
use crate::state::App;

/// Lowest average rate of a body after its first seconds, in bytes per second, as for uploads.
const RATE: u64 = 16 * 1024;

/// Time for which a body may be slower than [`RATE`].
const GRACE: Duration = Duration::from_secs(10);

/// Reads the body up to its limit. An upload is read by its handler instead. The memory of the
/// request is held until its response has ended.
pub(crate) async fn read(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let held = Arc::new(app.memory.request(&caller.tenant));
    let declared = declared(&parts.headers);
    let body = match (Arrival { app: &app, held: &held, declared }).read(body).await {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    if let Some(context) = parts.extensions.get_mut::<RequestContext>() {
        context.memory = Some(held.clone());
    }
    let mut response = next.run(Request::from_parts(parts, Body::from(body))).await;
    if !streams_events(&response) {
        let Some(size) = large(&response) else { return response };
        // A client may read a large answer slowly.
        if !held.resize(size) {
            return ApiError::crowded().into_response();
        }
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    let with_memory = move |body: Body| {
        body.into_data_stream().map(move |part| {
            let _held = &held;
            part
        })
    };
    response.map(|body| Body::from_stream(with_memory(body)))
}

/// Returns the size of a response's body that is large.
fn large(response: &Response) -> Option<usize> {
    let size = usize::try_from(response.body().size_hint().exact()?).ok()?;
    (size > MAX_SMALL_BODY_BYTES).then_some(size)
}

/// Body that arrives.
struct Arrival<'a> {
    app: &'a App,
    held: &'a Held,
    declared: Option<usize>,
}

impl Arrival<'_> {
    async fn read(&self, body: Body) -> Result<Bytes> {
        let most = self.app.settings.max_body;
        if self.declared.is_some_and(|length| length > most) {
            return Err(ApiError::too_large(most));
        }
        let (mut parts, mut bytes) = (body.into_data_stream(), BytesMut::new());
        let mut pace = Pace::new(self.app.settings.body_timeout);
        let mut is_large = false;
        while let Some(part) = timeout(pace.limit(bytes.len()), parts.next())
            .await
            .map_err(|_| ApiError::late_body())?
        {
            let part = part.map_err(|error| cut(&error))?;
            let length = bytes.len() + part.len();
            if length > most {
                return Err(ApiError::too_large(most));
            }
            if length > MAX_SMALL_BODY_BYTES && !is_large {
                is_large = true;
                let waits = self.app.memory.arrive(self.held, self.declared.unwrap_or(most));
                self.within(&mut pace, waits).await?;
            }
            if !self.held.take(part.len()) {
                return Err(ApiError::crowded());
            }
            bytes.extend_from_slice(&part);
        }
        if !bytes.is_empty() {
            let parses = self.app.memory.parse(self.held, Extent::of(&bytes));
            if !self.within(&mut pace, parses).await? {
                return Err(ApiError::crowded());
            }
        }
        Ok(bytes.freeze())
    }

    /// Waits for memory. The time is not the client's.
    async fn within<T>(&self, pace: &mut Pace, waits: impl Future<Output = T>) -> Result<T> {
        let began = Instant::now();
        let waited = timeout(self.app.settings.body_timeout, waits)
            .await
            .map_err(|_| ApiError::crowded())?;
        pace.began += began.elapsed();
        Ok(waited)
    }
}

/// Time limits of a body: all of it within the timeout of the configuration, and at [`RATE`] after
/// [`GRACE`].
struct Pace {
    began: Instant,
    timeout: Duration,
}

impl Pace {
    fn new(timeout: Duration) -> Self {
        Self { began: Instant::now(), timeout }
    }

    /// Returns the time limit of the next part of a body that has so many bytes.
    fn limit(&self, bytes: usize) -> Duration {
        let due = GRACE + Duration::from_millis(bytes as u64 * 1000 / RATE);
        due.min(self.timeout).saturating_sub(self.began.elapsed())
    }
}

/// Error for a body that ends early, or breaks the rules of HTTP.
fn cut(error: &axum::Error) -> ApiError {
    tracing::debug!(%error, "a body cannot be read");
    ApiError::bad_request(
        "the body of the request is cut, or its chunks or its encoding are malformed",
    )
}

fn declared(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::{GRACE, Pace, RATE};

    #[tokio::test(start_paused = true)]
    async fn m1_a_body_must_arrive_at_the_lowest_rate_and_in_time() {
        let second = Duration::from_secs(1);
        let pace = Pace::new(30 * second);
        assert_eq!(pace.limit(0), GRACE);
        advance(9 * second).await;
        assert_eq!(pace.limit(1), second);
        assert_eq!(pace.limit(2 * RATE as usize), 3 * second);
        // A body of any size has the timeout of the configuration at most.
        assert_eq!(pace.limit(8 << 20), 21 * second);
        assert_eq!(Pace::new(second).limit(0), second);
        advance(60 * second).await;
        assert_eq!(pace.limit(8 << 20), Duration::ZERO);
    }
}
