//! Spans of a request, here and in the traces of other services.
//!
//! Ids are made here even if no spans are collected: they are logged, and travel on to clients and
//! other workers.

use std::time::SystemTime;

use nsbridge_protocol::topology::header;
use nsbridge_protocol::{ErrorCode, TraceParent, Usage};
use nsbridge_queue::{Header, Message, Properties};
use nsbridge_telemetry::{Span, SpanKind, Value, child, root};

/// Position of one delivery of a request in its trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace {
    /// Span of the client, if it sent one.
    client: Option<TraceParent>,
    /// Span of the previous attempt, if it is known.
    before: Option<TraceParent>,
    /// Span of this worker's work on the delivery.
    process: TraceParent,
    /// Span of the handler's part of it.
    call: TraceParent,
}

impl Trace {
    /// Continues the trace that a request's headers name, or begins one.
    pub(crate) fn of(request: &Message) -> Self {
        let client = parent(&request.properties, header::TRACE_PARENT);
        let before = parent(&request.properties, header::TRACE_BEFORE);
        let process = client.map_or_else(root, child);
        Self { client, before, process, call: child(process) }
    }

    /// Sets the previous attempt, as a client sends it together with the pieces to resume from.
    pub(crate) fn follow(&mut self, before: Option<TraceParent>) {
        self.before = before.or(self.before);
    }

    /// Returns the span that replies carry and that a later attempt links to.
    pub(crate) fn process(&self) -> TraceParent {
        self.process
    }

    /// Returns the parent of the handler's own spans.
    pub(crate) fn call(&self) -> TraceParent {
        self.call
    }

    /// Returns a span for the log lines about the delivery.
    pub(crate) fn log(&self) -> tracing::Span {
        tracing::info_span!("request", trace = %self.process.trace, span = %self.process.span)
    }

    /// Returns the span of the whole delivery, once it is settled.
    pub(crate) fn processed(&self, queue: &str, began: SystemTime) -> Span {
        let attributes = [
            ("messaging.system", "rabbitmq".into()),
            ("messaging.operation.name", "process".into()),
            ("messaging.operation.type", "process".into()),
            ("messaging.destination.name", Value::from(queue.to_owned())),
        ];
        Span::new(self.process, SpanKind::Consumer, format!("process {queue}"), began)
            .parent(self.client)
            .link(self.before)
            .with(attributes)
    }

    /// Returns the span of the handler's call, once it has ended.
    pub(crate) fn called(&self, model: &str, began: SystemTime) -> Span {
        let attributes = [
            ("gen_ai.operation.name", "generate_content".into()),
            ("gen_ai.provider.name", "nsbridge".into()),
            ("gen_ai.request.model", Value::from(model.to_owned())),
        ];
        let name = format!("generate_content {model}");
        Span::new(self.call, SpanKind::Internal, name, began)
            .parent(Some(self.process))
            .with(attributes)
    }
}

/// Marks a span as failed with this code, if there is one.
pub(crate) fn failed(span: Span, code: Option<ErrorCode>) -> Span {
    match code {
        Some(code) => span.failed(code.as_str()),
        None => span,
    }
}

/// Adds the token usage, the number of pieces, and the number of those from an earlier attempt.
pub(crate) fn cost(span: Span, usage: Usage, pieces: usize, resumed: usize) -> Span {
    let int = |n: u64| Value::from(i64::try_from(n).unwrap_or(i64::MAX));
    span.with([
        ("gen_ai.usage.input_tokens", int(usage.input_tokens)),
        ("gen_ai.usage.output_tokens", int(usage.output_tokens)),
        ("gen_ai.usage.cache_read.input_tokens", int(usage.cached_tokens)),
        ("nsbridge.pieces", int(pieces as u64)),
        ("nsbridge.resumed_pieces", int(resumed as u64)),
    ])
}

/// Adds the id of the request, which may be logged, and the attempt number.
pub(crate) fn about(span: Span, request: &str, attempt: u32) -> Span {
    span.with([
        ("messaging.message.id", Value::from(request.to_owned())),
        ("nsbridge.attempt", Value::from(i64::from(attempt))),
    ])
}

/// Writes a span into a header. To its reader the header is no more than a hint.
pub(crate) fn put(properties: &mut Properties, name: &str, span: TraceParent) {
    properties.headers.insert(name.to_owned(), Header::Text(span.to_string()));
}

/// Returns the span that a header names; `None` if it is malformed.
pub(crate) fn parent(properties: &Properties, name: &str) -> Option<TraceParent> {
    properties.text(name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use nsbridge_protocol::topology::header;
    use nsbridge_queue::Message;

    use super::{Trace, parent, put};

    const CLIENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const BEFORE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-01";

    fn message(headers: &[(&str, &str)]) -> Message {
        let mut message = Message::new(Vec::new());
        for (name, value) in headers {
            let value = nsbridge_queue::Header::Text((*value).to_owned());
            message.properties.headers.insert((*name).to_owned(), value);
        }
        message
    }

    #[test]
    fn a_request_with_a_trace_goes_on_with_it() {
        let trace = Trace::of(&message(&[(header::TRACE_PARENT, CLIENT)]));
        let client = CLIENT.parse().unwrap();
        assert_eq!(trace.client, Some(client));
        assert_eq!((trace.process.trace, trace.call.trace), (client.trace, client.trace));
        assert!(trace.process.span != client.span && trace.call.span != trace.process.span);
        assert_eq!(trace.before, None);
    }

    #[test]
    fn a_request_without_one_or_with_a_broken_one_begins_its_own() {
        let (first, second) = (Trace::of(&message(&[])), Trace::of(&message(&[])));
        assert!(first.client.is_none() && first.process.sampled);
        assert_ne!(first.process.trace, second.process.trace);
        let broken = Trace::of(&message(&[(header::TRACE_PARENT, "00-xyz")]));
        assert!(broken.client.is_none());
    }

    #[test]
    fn a_trace_that_nobody_keeps_is_not_kept_here() {
        let unsampled = CLIENT.replace("-01", "-00");
        let trace = Trace::of(&message(&[(header::TRACE_PARENT, &unsampled)]));
        assert!(!trace.process.sampled && !trace.call.sampled);
    }

    #[test]
    fn the_attempt_before_is_named_by_the_copy_or_by_the_resume() {
        let mut copy = message(&[(header::TRACE_PARENT, CLIENT), (header::TRACE_BEFORE, BEFORE)]);
        let before = BEFORE.parse().unwrap();
        assert_eq!(Trace::of(&copy).before, Some(before));
        copy.properties.headers.remove(header::TRACE_BEFORE);
        let mut trace = Trace::of(&copy);
        trace.follow(None);
        assert_eq!(trace.before, None);
        let mut resume = message(&[]);
        put(&mut resume.properties, header::TRACE_BEFORE, before);
        trace.follow(parent(&resume.properties, header::TRACE_BEFORE));
        assert_eq!(trace.before, Some(before));
    }
}
