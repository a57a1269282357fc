//! Web pages of other origins that may call the gateway (the Fetch standard's CORS protocol).

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::http::origin;

/// Time for which a browser keeps an answer about what it may send.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Headers of responses that pages may read.
const EXPOSED_HEADERS: [HeaderName; 13] = [
    header::RETRY_AFTER,
    crate::api::schema::LEFT_OUT,
    crate::api::schema::TOOLS_LEFT_OUT,
    HeaderName::from_static("openai-processing-ms"),
    HeaderName::from_static("request-id"),
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("x-should-retry"),
];

/// Removes the headers of the protocol from responses that no page of another origin may read.
pub(crate) async fn only_for_pages(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if !headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
        headers.remove(header::ACCESS_CONTROL_EXPOSE_HEADERS);
    }
    response
}

/// Returns the layer that lets pages of these origins read responses. A gateway that is open to this
/// machine lets its own pages in, too.
pub(crate) fn layer(allow_origins: &[String], is_open: bool) -> CorsLayer {
    let listed: Vec<String> = allow_origins.to_vec();
    let may = move |given: &HeaderValue| {
        let Ok(given) = given.to_str() else { return false };
        origin::is_listed(given, &listed) || is_open && origin::is_allowed(given)
    };
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(move |origin, _| may(origin)))
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED_HEADERS)
        .max_age(MAX_AGE)
}
