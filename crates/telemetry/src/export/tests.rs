//! Tests of the export, against a server that answers as a collector.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use nsbridge_protocol::TraceParent;
use nsbridge_testkit::http::{Answer, Server};
use opentelemetry::trace::SpanKind;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as SentKind;
use opentelemetry_proto::tonic::trace::v1::{Span as Sent, status::StatusCode};
use prost::Message as _;

use super::{Spans, check};
use crate::span::{Span, child};

const CLIENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const BEFORE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-01";

fn spans(collector: &Server) -> Spans {
    let named = ["service.name", "service.instance.id"].into_iter();
    let named = named.zip(["nsbridge-worker".to_owned(), "worker-1".to_owned()]);
    Spans::to(&collector.url("/"), named).unwrap()
}

fn span(client: &str) -> Span {
    let client: TraceParent = client.parse().unwrap();
    let began = SystemTime::now() - Duration::from_secs(2);
    Span::new(child(client), SpanKind::Consumer, "process nsbridge.tale-7m", began)
        .parent(Some(client))
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
async fn a_collector_gets_spans_with_parent_link_and_events() {
    let collector = Server::start(|_| Answer::new(200, "")).await.unwrap();
    let (spans, before) = (spans(&collector), BEFORE.parse().unwrap());
    let first = SystemTime::now() - Duration::from_secs(1);
    let sent = span(CLIENT).link(Some(before)).event("first piece", first);
    let own = sent.own;
    spans.end(sent.with([("nsbridge.attempt", 65537.into())]).failed("deadline"));
    spans.end(Span::new(child(own), SpanKind::Internal, "call", first).parent(Some(own)));
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
    let [process, call]: &[Sent; 2] = batch.scope_spans[0].spans[..].try_into().unwrap();
    let (client, before): (TraceParent, TraceParent) =
        (CLIENT.parse().unwrap(), BEFORE.parse().unwrap());
    assert_eq!((&*process.trace_id, &*call.trace_id), (&client.trace.0[..], &client.trace.0[..]));
    assert_eq!(
        (&*process.parent_span_id, &*process.span_id),
        (&client.span.0[..], &own.span.0[..])
    );
    assert_eq!(call.parent_span_id, process.span_id);
    assert_eq!((process.links.len(), call.links.len()), (1, 0));
    assert_eq!(process.links[0].span_id, before.span.0);
    assert_eq!((&*process.events[0].name, call.events.len()), ("first piece", 0));
    let after = process.events[0].time_unix_nano - process.start_time_unix_nano;
    assert!((900_000_000..1_100_000_000).contains(&after), "{after}");
    assert_eq!(process.name, "process nsbridge.tale-7m");
    let kinds = [SentKind::Consumer as i32, SentKind::Internal as i32];
    assert_eq!([process.kind, call.kind], kinds);
    assert_eq!(process.status.as_ref().unwrap().code, StatusCode::Error as i32);
    assert!(process.end_time_unix_nano - process.start_time_unix_nano >= 2_000_000_000);
    let about = texts(&process.attributes);
    assert_eq!((&*about["error.type"], &*about["nsbridge.attempt"]), ("deadline", "65537"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_keeps_is_not_sent() {
    let collector = Server::start(|_| Answer::new(200, "")).await.unwrap();
    let spans = spans(&collector);
    spans.end(span(&CLIENT.replace("-01", "-00")));
    spans.close().await;
    assert_eq!(collector.seen().len(), 0);
    Spans::default().end(span(CLIENT));
    Spans::default().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_does_not_answer_keeps_nobody() {
    let collector = Server::start(|_| Answer::never()).await.unwrap();
    let spans = spans(&collector);
    for _ in 0..10_000 {
        spans.end(span(CLIENT));
    }
    let left = tokio::time::timeout(Duration::from_secs(8), spans.close()).await;
    assert!(left.is_ok(), "it waited for the collector");
}

#[test]
fn only_plain_http_addresses_are_taken() {
    assert!(check("http://localhost:4318").is_ok());
    for address in ["", "localhost:4318", "https://localhost:4318", "http://", "/v1/traces"] {
        assert!(check(address).is_err(), "{address}");
    }
}
