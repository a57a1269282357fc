//! Span of a request, sent to a collector when its response has ended.

use std::time::SystemTime;

use axum::http::{HeaderMap, Method};
use nsbridge_client::TraceParent;
use nsbridge_telemetry::{Span, SpanKind, Spans, child, root};

/// Routes whose requests have spans begin with one of these.
const TRACED: [&str; 3] = ["/v1/", "/tokenize", "/detokenize"];

/// Route of the connections of proxies, which last for days.
const CONNECTION: &str = "/v1/sealed";

/// Request whose span has begun.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    spans: Spans,
    own: TraceParent,
    parent: Option<TraceParent>,
    began: SystemTime,
    name: String,
    route: String,
    method: Method,
    /// Time of the first event of a stream.
    first: Option<SystemTime>,
}

/// Span of a request in the extensions of the request. The worker's spans are its children.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSpan(pub(crate) TraceParent);

impl RequestTrace {
    /// Begins the span of a request; `None` without a collector, and for pages that call no worker.
    pub(crate) fn begin(
        spans: &Spans,
        headers: &HeaderMap,
        method: &Method,
        route: Option<&str>,
    ) -> Option<Self> {
        let is_traced = |route: &&str| {
            *route != CONNECTION && TRACED.iter().any(|traced| route.starts_with(traced))
        };
        let route = route.filter(|_| spans.are_sent()).filter(is_traced)?.to_owned();
        let parent = parent(headers);
        Some(Self {
            spans: spans.clone(),
            own: parent.map_or_else(root, child),
            parent,
            began: SystemTime::now(),
            name: format!("{method} {route}"),
            route,
            method: method.clone(),
            first: None,
        })
    }

    pub(crate) fn span(&self) -> RequestSpan {
        RequestSpan(self.own)
    }

    /// Records that an event of a stream was written.
    pub(crate) fn wrote(&mut self) {
        self.first.get_or_insert_with(SystemTime::now);
    }

    /// Sends the span. Names of attributes are those of OpenTelemetry's HTTP conventions.
    pub(crate) fn end(self, status: u16, code: &str) {
        let mut span = Span::new(self.own, SpanKind::Server, self.name, self.began)
            .parent(self.parent)
            .with([
                ("http.request.method", self.method.as_str().to_owned().into()),
                ("http.route", self.route.into()),
                ("http.response.status_code", i64::from(status).into()),
            ]);
        if let Some(first) = self.first {
            span = span.event("first event", first);
        }
        // The fault of a client is no failure of this span.
        self.spans.end(match status {
            500.. => span.failed(code),
            400..500 => span.with([("error.type", code.to_owned().into())]),
            _ => span,
        });
    }
}

/// Returns the caller's span; `None` if it sent none, or a malformed one.
pub(crate) fn parent(headers: &HeaderMap) -> Option<TraceParent> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}
