//! Traces of a request, from its caller through each attempt.

use std::sync::Arc;
use std::time::Duration;

use nsbridge::worker::Spans;
use nsbridge_protocol::TraceParent;
use nsbridge_queue::{Broker, MemoryBroker};
use nsbridge_testkit::http::{Answer, Server};
use nsbridge_testkit::system::Setup;
use nsbridge_testkit::system::client::Reply;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;

use crate::script::{Script, Scripted, ask, said};
use crate::trouble::rest;

/// Trace context of a calling service.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

const CANARY: &str = "canary-in-the-prompt";

/// Returns all spans that the collector received.
fn received(collector: &Server) -> Vec<Span> {
    let batches = collector.seen().into_iter().map(|seen| {
        assert_eq!(seen.line, "POST /v1/traces");
        assert!(!seen.body.windows(CANARY.len()).any(|bytes| bytes == CANARY.as_bytes()));
        ExportTraceServiceRequest::decode(&*seen.body).unwrap()
    });
    let scopes = batches.flat_map(|batch| batch.resource_spans).flat_map(|of| of.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
}

struct Stage {
    collector: Server,
    broker: Arc<dyn Broker>,
    setup: Setup,
}

impl Stage {
    async fn new() -> Self {
        let collector = Server::start(|_| Answer::new(200, "")).await.unwrap();
        let mut setup = Setup::new().unwrap();
        setup.grace = Duration::ZERO;
        setup.observability.spans =
            Spans::to(&collector.url(""), [("service.name", "worker".to_owned())]).unwrap();
        Self { collector, broker: Arc::new(MemoryBroker::new()), setup }
    }

    async fn submit(&self, script: Script) -> Reply<String> {
        let client = self.setup.client(self.broker.clone()).await.unwrap();
        let mut ask = ask(&self.setup, script, 7);
        ask.trace = Some(CALLER.parse().unwrap());
        client.submit(ask).await.unwrap()
    }

    /// Flushes the exporter and returns all spans.
    async fn spans(&self) -> Vec<Span> {
        self.setup.observability.spans.close().await;
        received(&self.collector)
    }
}

#[track_caller]
fn one(spans: &[Span], is_it: impl Fn(&&Span) -> bool) -> &Span {
    let found: Vec<_> = spans.iter().filter(is_it).collect();
    assert_eq!(found.len(), 1, "{spans:#?}");
    found[0]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_callers_span_is_the_workers_parent_and_the_workers_the_handlers() {
    let stage = Stage::new().await;
    let worker = stage.setup.worker::<Scripted>(stage.broker.clone(), ()).await.unwrap();
    stage.submit(Script::Say { pieces: 3, every_ms: 1 }).await.collect().await.unwrap();
    worker.stop().await.unwrap();
    let spans = stage.spans().await;
    let caller: TraceParent = CALLER.parse().unwrap();
    assert!(spans.len() == 2 && spans.iter().all(|span| span.trace_id == caller.trace.0));
    let process = one(&spans, |span| span.parent_span_id == caller.span.0);
    assert_eq!(process.name, format!("process nsbridge.{}", stage.setup.model));
    let call = one(&spans, |span| span.parent_span_id == process.span_id);
    assert_eq!(call.name, format!("generate_content {}", stage.setup.model));
    assert!(process.links.is_empty());
    assert!(process.start_time_unix_nano <= call.start_time_unix_nano);
    assert!(process.end_time_unix_nano >= call.end_time_unix_nano);
    let first = &call.events[0];
    assert_eq!((call.events.len(), &*first.name), (1, "first piece"));
    assert!((call.start_time_unix_nano..=call.end_time_unix_nano).contains(&first.time_unix_nano));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_resumes_is_linked_to_the_one_before() {
    let stage = Stage::new().await;
    let first = stage.setup.worker::<Scripted>(stage.broker.clone(), ()).await.unwrap();
    let mut reply = stage.submit(Script::Say { pieces: 200, every_ms: 5 }).await;
    reply.next().await.unwrap().unwrap();
    first.stop().await.unwrap();
    let second = stage.setup.worker::<Scripted>(stage.broker.clone(), ()).await.unwrap();
    assert_eq!(rest(reply).await, said(7, 200)[1..]);
    second.stop().await.unwrap();
    let spans = stage.spans().await;
    let before = one(&spans, |span| span.name.starts_with("process") && span.links.is_empty());
    let after = one(&spans, |span| !span.links.is_empty());
    assert_eq!(after.links.len(), 1);
    assert_eq!(after.links[0].span_id, before.span_id);
    assert_eq!(after.links[0].trace_id, before.trace_id);
    assert_eq!(after.parent_span_id, before.parent_span_id, "both are the caller's children");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_is_linked_to_the_try_before() {
    let stage = Stage::new().await;
    let worker = stage.setup.worker::<Scripted>(stage.broker.clone(), ()).await.unwrap();
    stage.submit(Script::Fail).await.collect().await.unwrap_err();
    worker.stop().await.unwrap();
    let spans = stage.spans().await;
    let tries = || spans.iter().filter(|span| span.name.starts_with("process"));
    assert_eq!(tries().count(), 2);
    let first = tries().find(|span| span.links.is_empty()).unwrap();
    let second = tries().find(|span| !span.links.is_empty()).unwrap();
    assert_eq!(second.links[0].span_id, first.span_id);
    assert_eq!(second.status.as_ref().unwrap().code, StatusCode::Error as i32);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_the_user_wrote_is_in_a_span_or_a_metric() {
    let stage = Stage::new().await;
    let worker = stage.setup.worker::<Scripted>(stage.broker.clone(), ()).await.unwrap();
    stage.submit(Script::Refuse(CANARY.into())).await.collect().await.unwrap_err();
    worker.stop().await.unwrap();
    // `received` searches the raw bytes for the canary.
    let spans = stage.spans().await;
    let failed = one(&spans, |span| span.name.starts_with("generate_content"));
    assert_eq!(failed.status.as_ref().unwrap().message, "bad-input");
    let text = stage.setup.observability.metrics.text();
    assert!(text.contains("outcome=\"bad-input\"") && !text.contains(CANARY));
    assert!(!text.contains(&format!("\"{}\"", stage.setup.tenant())), "nor is the tenant");
}
