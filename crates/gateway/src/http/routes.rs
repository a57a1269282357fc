//! Routes, and what every request passes through: identity, limits of size, request ids, headers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::{Stream, StreamExt};
use nsbridge_gateway_access::{Caller, Denied};
use nsbridge_gateway_replies::RequestContext;
use nsbridge_protocol::Uuid;
use tower_http::decompression::RequestDecompressionLayer;

use crate::api::sse::streams_events;
use crate::api::tokens;
use crate::api::{
    batches, chat, completions, decisions, embeddings, files, messages, models, moderations,
    responses, run,
};
use crate::config::Settings;
use crate::error::{ApiError, Outcome, named_for_path};
use crate::http::drain_body;
use crate::http::origin::is_local;
use crate::http::traces::{self, RequestSpan, RequestTrace};
use crate::http::{body_memory, cors, openapi, page};
use crate::metrics::OpenStream;
use crate::sealed::relay;
use crate::state::App;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const PROCESSING_MS: HeaderName = HeaderName::from_static("openai-processing-ms");

/// Returns the routes.
pub(crate) fn routes(app: Arc<App>) -> Router {
    let api = Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/decisions", post(decisions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::get).post(run::create))
        .route("/v1/moderations", post(moderations::create))
        .route("/tokenize", post(tokens::tokenize))
        .route("/v1/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/detokenize", post(tokens::detokenize))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::input_tokens))
        .route("/v1/responses/compact", post(responses::compact))
        .route("/v1/responses/{id}", get(responses::get).delete(responses::delete))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/v1/files", get(files::list))
        .route("/v1/files/{id}", get(files::get).delete(files::delete))
        .route("/v1/files/{id}/content", get(files::content))
        .route("/v1/batches", post(batches::create).get(batches::list))
        .route("/v1/batches/{id}", get(batches::get))
        .route("/v1/batches/{id}/cancel", post(batches::cancel))
        .layer(from_fn_with_state(app.clone(), body_memory::read))
        .route("/v1/files", post(files::upload))
        .route("/v1/sealed", get(relay::open))
        .layer(RequestDecompressionLayer::new())
        .layer(from_fn(refuse_encoding))
        .layer(from_fn_with_state(app.clone(), identify))
        .layer(from_fn(drain_body::read));
    let page = if app.settings.page { page::routes() } else { Router::new() };
    Router::new()
        .merge(api)
        .merge(page)
        .route("/openapi.json", get(openapi::get))
        .merge(health())
        .fallback(async || ApiError::not_found("there is no such page").coded("unknown_url"))
        .method_not_allowed_fallback(async || ApiError::wrong_method())
        .layer(DefaultBodyLimit::disable())
        .layer(cors::layer(&app.settings.allow_origins, app.access.is_open()))
        .layer(from_fn(cors::only_for_pages))
        .layer(from_fn(name_methods))
        .layer(from_fn_with_state(app.clone(), observe))
        .with_state(app)
}

/// Returns the pages about the health of the gateway.
fn health() -> Router<Arc<App>> {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/health", get(ready))
        .route("/readyz", get(ready))
}

/// Returns the pages of the listener of the metrics: orchestrators ask for the health where no client
/// of the API can take their places.
pub(crate) fn internal(app: Arc<App>) -> Router {
    app.metrics.clone().page().merge(health().with_state(app))
}

async fn ready(State(app): State<Arc<App>>) -> Response {
    match app.why_not_ready() {
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
        None => "ok\n".into_response(),
    }
}

/// Names the methods of a model's page or of its runs, which share a route: a model's name may have slashes.
async fn name_methods(request: Request, next: Next) -> Response {
    let path = request.uri().path().strip_prefix("/v1/models/");
    let methods = path.map(|rest| if rest.ends_with(run::SUFFIX) { "POST" } else { "GET,HEAD" });
    let is_options = request.method() == Method::OPTIONS;
    let mut response = next.run(request).await;
    if let Some(methods) = methods
        && (is_options || response.status() == StatusCode::METHOD_NOT_ALLOWED)
    {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    }
    response
}

/// Encodings of bodies that are decoded.
const ENCODINGS: [&str; 3] = ["deflate", "gzip", "zstd"];

/// Refuses a body in an encoding that is not decoded.
async fn refuse_encoding(request: Request, next: Next) -> Response {
    let mut given = request.headers().get_all(header::CONTENT_ENCODING).iter();
    let known = |encoding: &str| encoding == "identity" || ENCODINGS.contains(&encoding);
    match given.find(|encoding| !encoding.to_str().is_ok_and(known)) {
        Some(encoding) => ApiError::encoded(encoding, &ENCODINGS).into_response(),
        None => next.run(request).await,
    }
}

/// Identifies the caller, and reads the headers about the reply.
async fn identify(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let origins = &app.settings.allow_origins;
    if app.access.is_open() && !is_local(request.headers(), request.uri(), origins) {
        return ApiError::foreign().into_response();
    }
    let caller = match caller(&app, request.headers()) {
        Ok(caller) => caller,
        Err(denied) => return ApiError::unauthorized(denied.to_string()).into_response(),
    };
    if app.draining.is_cancelled() && request.method() == Method::POST {
        let after = std::time::Duration::from_secs(1);
        let error = ApiError::unavailable("this gateway is shutting down", after);
        return error.coded("draining").into_response();
    }
    let mut context = context(request.headers(), &app.settings);
    if let Some(RequestSpan(own)) = request.extensions().get() {
        context.trace = Some(*own);
    }
    let limiter = caller.limiter.clone();
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(context);
    let mut response = next.run(request).await;
    for (name, value) in limiter.headers() {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

fn caller(app: &App, headers: &HeaderMap) -> Result<Arc<Caller>, Denied> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    app.access.check(text("authorization"), text("x-api-key"))
}

/// Headers in which the official clients announce the time that they wait for a byte of a response, in
/// seconds. The Python clients send the first one, those of JavaScript the second one.
const CLIENT_TIMEOUTS: [&str; 2] = ["x-stainless-read-timeout", "x-stainless-timeout"];

/// Time by which a response comes before the limit of its client.
const MARGIN: Duration = Duration::from_secs(1);

/// Returns the time for which a client that sees no byte waits for a model without a worker.
fn patience(headers: &HeaderMap, settings: &Settings) -> Duration {
    let announced = CLIENT_TIMEOUTS.into_iter().filter_map(|name| {
        let seconds = headers.get(name)?.to_str().ok()?.parse().ok()?;
        Duration::try_from_secs_f64(seconds).ok()
    });
    let before = |limit: Duration| limit - MARGIN.min(limit / 2);
    announced.chain([settings.timeout]).map(before).fold(settings.start_wait, Duration::min)
}

fn context(headers: &HeaderMap, settings: &Settings) -> RequestContext {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    RequestContext {
        trace: traces::parent(headers),
        idempotency_key: text("idempotency-key").map(|key| key.chars().take(255).collect()),
        retries: text("x-stainless-retry-count").is_some_and(|count| count != "0"),
        line: None,
        memory: None,
        patience: Some(patience(headers, settings)),
    }
}

/// Gives the request an id, measures it, and logs its end. No line has text of the request.
async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let path_of_route = route.as_ref().map(MatchedPath::as_str);
    let trace = RequestTrace::begin(&app.spans, request.headers(), &method, path_of_route);
    if let Some(trace) = &trace {
        request.extensions_mut().insert(trace.span());
    }
    let named = request.headers().get(&REQUEST_ID).filter(|id| is_plain(id)).cloned();
    let id =
        named.or_else(|| HeaderValue::from_str(&format!("req_{}", Uuid::now_v7().simple())).ok());
    let mut response = named_fault(next.run(request).await);
    let took = began.elapsed();
    let ms = took.as_millis();
    response = named_for_path(response, &path);
    if let Some(id) = id.as_ref().filter(|_| messages::error::is_path(&path)) {
        response = messages::error::shaped(response, id);
    }
    let headers = response.headers_mut();
    if let Some(id) = &id {
        headers.insert(REQUEST_ID, id.clone());
    }
    headers.insert(PROCESSING_MS, HeaderValue::from(u64::try_from(ms).unwrap_or(u64::MAX)));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    let status = response.status().as_u16();
    let code = response.extensions().get::<Outcome>().map_or("", |outcome| &outcome.0);
    let route = route.as_ref().map(MatchedPath::as_str);
    if status >= 400 {
        app.metrics.refused(code);
    }
    let id = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
    // An id of a response in a path is no secret: only its key can use it.
    tracing::info!(request = id, %method, path = %shown(&path), status, code, ms = %ms, "request");
    if streams_events(&response) {
        let open = app.metrics.stream_opened();
        let route = route.map(str::to_owned);
        let request = Measured { app, began, method, route, status, trace };
        let held = |body: Body| Streamed { body: body.into_data_stream(), _open: open, request };
        return response.map(|body| Body::from_stream(held(body)));
    }
    app.metrics.responded(&method, route, status, took);
    if let Some(trace) = trace {
        trace.end(status, code);
    }
    response
}

/// Gives the body of an error to a refusal of the framework, such as that of a path that is not UTF-8.
fn named_fault(response: Response) -> Response {
    let of_framework = response.extensions().get::<Outcome>().is_none();
    if response.status() == StatusCode::BAD_REQUEST && of_framework {
        return ApiError::bad_request("the path of the request is malformed").into_response();
    }
    response
}

/// Body of a response that streams events, which counts as open until it is dropped.
struct Streamed {
    body: BodyDataStream,
    _open: OpenStream,
    request: Measured,
}

/// Request whose duration is measured when it is dropped.
struct Measured {
    app: Arc<App>,
    began: Instant,
    method: Method,
    route: Option<String>,
    status: u16,
    trace: Option<RequestTrace>,
}

impl Drop for Measured {
    fn drop(&mut self) {
        let Self { app, began, method, route, status, trace } = self;
        app.metrics.responded(method, route.as_deref(), *status, began.elapsed());
        if let Some(trace) = trace.take() {
            trace.end(*status, "");
        }
    }
}

impl Stream for Streamed {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.body.poll_next_unpin(context);
        if let (Poll::Ready(Some(Ok(_))), Some(trace)) = (&next, &mut self.request.trace) {
            trace.wrote();
        }
        next
    }
}

/// Returns true for a request id that may be written to a log.
fn is_plain(id: &HeaderValue) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
    (1..=128).contains(&id.len()) && id.as_bytes().iter().all(allowed)
}

/// Returns the beginning of a path, without characters that a log must not have.
fn shown(path: &str) -> String {
    path.chars().take(100).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}
