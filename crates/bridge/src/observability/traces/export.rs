//! Export of spans to a collector, by OTLP over HTTP.
//!
//! Batching and encoding are OpenTelemetry's own; the HTTP client is ours, so that no second one is
//! built in. `tracing-opentelemetry` is left out on purpose: it makes ids of its own, and exports
//! every log line within a span, with any text that a library wrote into it.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hyper::{Request, Response};
use nsbridge_protocol::{ModelName, TraceParent};
use opentelemetry::trace::{Link, SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};
use tokio::runtime::Handle;

use super::Span;
use crate::config::ConfigError;
use crate::http;

/// Time limit for a collector to answer a batch.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Time limit of the last batch when the worker exits.
const GOODBYE: Duration = Duration::from_secs(3);

/// Destination of ended spans: none without a collector. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Spans(Option<Arc<BatchSpanProcessor>>);

impl Spans {
    /// Sends spans to a collector, in batches and from a separate thread. If the collector is away,
    /// spans are lost and nothing else.
    ///
    /// Must be called on the runtime that carries the requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the address cannot be used.
    pub fn to(collector: &str, worker: &str, model: &ModelName) -> Result<Self, ConfigError> {
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
            .map_err(|error| ConfigError(format!("[telemetry] otlp {collector}: {error}")))?;
        let mut batches = BatchSpanProcessor::builder(exporter).build();
        let named = [
            ("service.name", "nsbridge-worker".to_owned()),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("service.instance.id", worker.to_owned()),
            ("nsbridge.model", model.to_string()),
        ];
        let named = named.map(|(key, value)| KeyValue::new(key, value));
        batches.set_resource(&Resource::builder_empty().with_attributes(named).build());
        Ok(Self(Some(Arc::new(batches))))
    }

    /// Sends a span, unless its trace is not sampled.
    pub(crate) fn end(&self, span: Span) {
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
    SpanData {
        span_context: context(span.own, false),
        parent_span_id: span
            .parent
            .map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.span.0)),
        parent_span_is_remote: span.kind == opentelemetry::trace::SpanKind::Consumer,
        span_kind: span.kind,
        name: Cow::Owned(span.name),
        start_time: span.began,
        end_time: span.ended,
        attributes: span.attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
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

/// HTTP client for the collector: called on OpenTelemetry's thread, runs on the bridge's runtime.
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
                    let error = nsbridge_handler::chain(error);
                    tracing::warn!(error, "spans cannot be sent to the collector");
                }
            }
        }
        Ok(answer?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, SystemTime};

    use nsbridge_protocol::topology::header;
    use nsbridge_protocol::{ErrorCode, Usage};
    use nsbridge_queue::{Header, Message};
    use nsbridge_testkit::http::{Answer, Server};
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
    use opentelemetry_proto::tonic::trace::v1::{Span as Sent, span::SpanKind, status::StatusCode};
    use prost::Message as _;

    use super::Spans;
    use crate::observability::traces::Trace;

    const CLIENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const BEFORE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-01";

    fn request(client: &str) -> Message {
        let mut message = Message::new(Vec::new());
        let headers = &mut message.properties.headers;
        headers.insert(header::TRACE_PARENT.to_owned(), Header::Text(client.to_owned()));
        headers.insert(header::TRACE_BEFORE.to_owned(), Header::Text(BEFORE.to_owned()));
        message
    }

    fn spans(collector: &Server) -> Spans {
        Spans::to(&collector.url("/"), "worker-1", &"tale-7m".parse().unwrap()).unwrap()
    }

    fn texts(attributes: &[KeyValue]) -> BTreeMap<&str, String> {
        let text = |value: &Value| match value {
            Value::StringValue(text) => text.clone(),
            Value::IntValue(n) => n.to_string(),
            other => format!("{other:?}"),
        };
        let pair = |pair: &'_ KeyValue| pair.value.as_ref()?.value.as_ref().map(text);
        attributes.iter().filter_map(|at| Some((at.key.as_str(), pair(at)?))).collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_collector_gets_both_spans_with_parent_and_link() {
        let collector = Server::start(|_| Answer::new(200, "")).await.unwrap();
        let (spans, trace) = (spans(&collector), Trace::of(&request(CLIENT)));
        let began = SystemTime::now() - Duration::from_secs(2);
        let counts = Usage { input_tokens: 5, output_tokens: 7, ..Usage::default() };
        let usage = Usage { cached_tokens: 3, ..counts };
        spans.end(trace.called("tale-7m", began).cost(usage, 7, 2));
        let failed = Some(ErrorCode::Deadline);
        spans.end(trace.processed("nsbridge.tale-7m", began).about("id", 65537).failed(failed));
        spans.close().await;

        let seen = collector.seen();
        assert_eq!(seen.len(), 1, "one batch");
        assert_eq!(seen[0].line, "POST /v1/traces");
        assert_eq!(seen[0].header("content-type"), Some("application/x-protobuf"));
        let batch = ExportTraceServiceRequest::decode(&*seen[0].body).unwrap();
        let batch = &batch.resource_spans[0];
        let resource = texts(&batch.resource.as_ref().unwrap().attributes);
        assert_eq!(resource["service.name"], "nsbridge-worker");
        assert_eq!(resource["service.instance.id"], "worker-1");
        let [call, process]: &[Sent; 2] = batch.scope_spans[0].spans[..].try_into().unwrap();
        let client: nsbridge_protocol::TraceParent = CLIENT.parse().unwrap();
        let before: nsbridge_protocol::TraceParent = BEFORE.parse().unwrap();
        assert_eq!(
            (&process.trace_id[..], &call.trace_id[..]),
            (&client.trace.0[..], &client.trace.0[..])
        );
        assert_eq!(process.parent_span_id, client.span.0);
        assert_eq!(call.parent_span_id, process.span_id);
        assert_eq!(process.links.len(), 1);
        assert_eq!(process.links[0].span_id, before.span.0);
        assert!(call.links.is_empty());
        assert_eq!(process.name, "process nsbridge.tale-7m");
        assert_eq!(process.kind, SpanKind::Consumer as i32);
        assert_eq!(process.status.as_ref().unwrap().code, StatusCode::Error as i32);
        assert!(process.end_time_unix_nano - process.start_time_unix_nano >= 2_000_000_000);
        let (about, cost) = (texts(&process.attributes), texts(&call.attributes));
        assert_eq!((&*about["error.type"], &*about["nsbridge.attempt"]), ("deadline", "65537"));
        assert_eq!(
            (&*cost["gen_ai.usage.input_tokens"], &*cost["nsbridge.resumed_pieces"]),
            ("5", "2")
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_nobody_keeps_is_not_sent() {
        let collector = Server::start(|_| Answer::new(200, "")).await.unwrap();
        let spans = spans(&collector);
        let trace = Trace::of(&request(&CLIENT.replace("-01", "-00")));
        spans.end(trace.processed("nsbridge.tale-7m", SystemTime::now()));
        spans.close().await;
        assert_eq!(collector.seen().len(), 0);
        Spans::default().end(trace.processed("nsbridge.tale-7m", SystemTime::now()));
        Spans::default().close().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_collector_that_does_not_answer_keeps_nobody() {
        let collector = Server::start(|_| Answer::never()).await.unwrap();
        let spans = spans(&collector);
        let trace = Trace::of(&request(CLIENT));
        for _ in 0..10_000 {
            spans.end(trace.processed("nsbridge.tale-7m", SystemTime::now()));
        }
        let left = tokio::time::timeout(Duration::from_secs(8), spans.close()).await;
        assert!(left.is_ok(), "it waited for the collector");
    }
}
