//! Spans of requests, from a caller through the gateway to the handler's call.

use std::collections::BTreeMap;

use nsbridge_client::TraceParent;
use nsbridge_testkit::http::{Answer, Server};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use prost::Message as _;
use serde_json::json;

use crate::place::Place;

/// Trace context of a calling service.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

const CANARY: &str = "canary-in-the-prompt";

/// Returns all spans that the collector received.
fn received(collector: &Server) -> Vec<Span> {
    let batches = collector.seen().into_iter().map(|seen| {
        assert!(!seen.body.windows(CANARY.len()).any(|bytes| bytes == CANARY.as_bytes()));
        ExportTraceServiceRequest::decode(&*seen.body).unwrap()
    });
    let scopes = batches.flat_map(|batch| batch.resource_spans).flat_map(|of| of.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
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
async fn a_request_is_a_child_of_its_caller_and_the_parent_of_the_workers_spans() {
    let (gateway, worker) = (collector().await, collector().await);
    let place = Place::traced(&gateway.url(""), &worker.url("")).await;
    let headers = [("traceparent", CALLER)];
    let body = json!({ "model": "words", "input": CANARY, "stream": true });
    assert_eq!(place.post("/v1/responses", &body, &headers).await.status, 200);
    let wrong = json!({ "model": "words", "input": CANARY, "wrong": true });
    assert_eq!(place.post("/v1/responses", &wrong, &[]).await.status, 400);
    place.get("/openapi.json").await;
    place.flush().await;

    let caller: TraceParent = CALLER.parse().unwrap();
    let [spans, workers] = [received(&gateway), received(&worker)];
    let [request, refused] = &spans[..] else { panic!("{spans:#?}") };
    assert_eq!(
        (&*request.trace_id, &*request.parent_span_id),
        (&caller.trace.0[..], &caller.span.0[..])
    );
    assert_eq!((&*request.name, request.kind), ("POST /v1/responses", SpanKind::Server as i32));
    assert_eq!(request.events[0].name, "first event");
    let about = texts(&request.attributes);
    assert_eq!(
        (&*about["http.route"], &*about["http.response.status_code"]),
        ("/v1/responses", "200")
    );
    let process = workers.iter().find(|span| span.parent_span_id == request.span_id).unwrap();
    assert_eq!(process.trace_id, request.trace_id);
    let call = workers.iter().find(|span| span.parent_span_id == process.span_id).unwrap();
    assert!(call.name.starts_with("generate_content"), "{call:?}");
    // A caller without a trace begins none, and its fault is no failure of the gateway.
    assert!(refused.parent_span_id.is_empty() && refused.trace_id != request.trace_id);
    assert_eq!(texts(&refused.attributes)["error.type"], "unsupported_parameter");
    let failed =
        |span: &Span| span.status.as_ref().is_some_and(|it| it.code == StatusCode::Error as i32);
    assert!(!failed(refused) && !failed(request));
}

async fn collector() -> Server {
    Server::start(|_| Answer::new(200, "")).await.unwrap()
}
