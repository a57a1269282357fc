//! Export of spans to a collector, by OTLP over HTTP.
//!
//! Batching and encoding are OpenTelemetry's own; the HTTP client is ours, so that no second one is
//! built in. `tracing-opentelemetry` is left out on purpose: it makes ids of its own, and exports
//! every log line within a span, with any text that a library wrote into it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hyper::{Request, Response};
use nsbridge_protocol::TraceParent;
use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};
use tokio::runtime::Handle;

use crate::http;
use crate::span::Span;

/// Time limit for a collector to answer a batch.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Time limit of the last batch when the process exits.
const GOODBYE: Duration = Duration::from_secs(3);

/// Error of a collector's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidCollector(String);

/// Checks the address of a collector, which must be plain HTTP: it is on this machine or next to it.
///
/// # Errors
///
/// Returns an error with the form that the address must have.
pub fn check(collector: &str) -> Result<(), InvalidCollector> {
    let uri = collector.parse::<hyper::Uri>().ok();
    let good = uri.is_some_and(|uri| uri.scheme_str() == Some("http") && uri.host().is_some());
    if good {
        return Ok(());
    }
    Err(InvalidCollector("must be an address like http://host:port".to_owned()))
}

/// Destination of ended spans: none without a collector. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Spans(Option<Arc<BatchSpanProcessor>>);

impl Spans {
    /// Sends spans to a collector, such as `http://localhost:4318`, in batches and from a separate
    /// thread. If the collector is away, spans are lost and nothing else. `resource` describes this
    /// process: `service.name`, `service.instance.id` and the like.
    ///
    /// Must be called on the runtime that carries the requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the address cannot be used.
    pub fn to(
        collector: &str,
        resource: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Self, InvalidCollector> {
        check(collector)?;
        let endpoint = format!("{}/v1/traces", collector.trim_end_matches('/'));
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector {
                runtime: Handle::current(),
                failing: AtomicBool::new(false),
            })
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .with_timeout(ANSWER_WITHIN)
            .build()
            .map_err(|cause| InvalidCollector(format!("{collector}: {cause}")))?;
        let mut batches = BatchSpanProcessor::builder(exporter).build();
        let version = ("service.version", env!("CARGO_PKG_VERSION").to_owned());
        let named = resource.into_iter().chain([version]);
        let named = named.map(|(key, value)| KeyValue::new(key, value));
        batches.set_resource(&Resource::builder_empty().with_attributes(named).build());
        Ok(Self(Some(Arc::new(batches))))
    }

    /// Returns true if there is a collector.
    pub fn are_sent(&self) -> bool {
        self.0.is_some()
    }

    /// Sends a span, unless its trace is not sampled.
    pub fn end(&self, span: Span) {
        if let Some(batches) = &self.0
            && span.own.sampled
        {
            batches.on_end(written(span));
        }
    }

    /// Sends the remaining spans. No span is sent after that.
    pub async fn close(&self) {
        let Some(batches) = self.0.clone() else { return };
        let closed = tokio::task::spawn_blocking(move || batches.shutdown_with_timeout(GOODBYE));
        if !matches!(closed.await, Ok(Ok(()))) {
            tracing::debug!("the last spans may not have arrived");
        }
    }
}

fn written(span: Span) -> SpanData {
    let link = span.link.map(|before| Link::with_context(context(before, true)));
    let mut links = SpanLinks::default();
    links.links.extend(link);
    let mut events = SpanEvents::default();
    events.events = span.events;
    let is_remote = matches!(span.kind, SpanKind::Consumer | SpanKind::Server);
    SpanData {
        span_context: context(span.own, false),
        parent_span_id: span
            .parent
            .map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.span.0)),
        parent_span_is_remote: is_remote,
        span_kind: span.kind,
        name: span.name,
        start_time: span.began,
        end_time: span.ended,
        attributes: span.attributes,
        dropped_attributes_count: 0,
        events,
        links,
        status: span.status,
        instrumentation_scope: InstrumentationScope::builder("nsbridge")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

fn context(span: TraceParent, remote: bool) -> SpanContext {
    let (trace, id) = (TraceId::from_bytes(span.trace.0), SpanId::from_bytes(span.span.0));
    let flags = TraceFlags::default().with_sampled(span.sampled);
    SpanContext::new(trace, id, flags, remote, TraceState::default())
}

/// HTTP client for the collector: called on OpenTelemetry's thread, runs on the runtime of the requests.
#[derive(Debug)]
struct Collector {
    runtime: Handle,
    failing: AtomicBool,
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.runtime.spawn(http::exchange(request, ANSWER_WITHIN)).await?;
        let good = answer.as_ref().is_ok_and(|answer| answer.status().is_success());
        // One log line for an outage, however many batches it affects.
        if !self.failing.swap(!good, Ordering::Relaxed) && !good {
            match &answer {
                Ok(answer) => {
                    tracing::warn!(status = %answer.status(), "the collector refuses spans");
                }
                Err(error) => {
                    let error = nsbridge_base::chain(error);
                    tracing::warn!(error, "spans cannot be sent to the collector");
                }
            }
        }
        Ok(answer?)
    }
}

#[cfg(test)]
mod tests;
