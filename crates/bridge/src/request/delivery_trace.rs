//! Metrics and traces of one delivery in this worker.

use std::time::SystemTime;

use nsbridge_handler::transcript::Reader;
use nsbridge_protocol::topology::{header, request_queue};
use nsbridge_protocol::{ErrorCode, ModelName, Priority, TraceParent, Usage};
use nsbridge_queue::{Message, Properties};
use nsbridge_telemetry::Spans;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::observability::Observability;
use crate::observability::metrics::{Metrics, Outcome, RequestMeter};
use crate::observability::traces::{Trace, about, cost, failed, put};
use crate::request::admission::AdmittedRequest;

/// Measurements of one delivery, from its arrival to its settlement.
#[derive(Debug)]
pub(crate) struct DeliveryTrace {
    metrics: Metrics,
    spans: Spans,
    model: ModelName,
    priority: Priority,
    came: Instant,
    came_at: SystemTime,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    trace: Trace,
    /// Request id and attempt number, once they are known.
    about: Option<(String, u32)>,
    meter: Option<RequestMeter>,
    /// Time at which the first piece of this worker could be sent.
    first: Option<SystemTime>,
    outcome: Option<Outcome>,
    passed_on: bool,
}

impl DeliveryTrace {
    /// Begins with the arrival of a delivery.
    pub(crate) fn begin(
        observability: &Observability,
        model: &ModelName,
        priority: Priority,
        request: &Message,
    ) -> Self {
        let Observability { metrics, spans, .. } = observability.clone();
        metrics.consumed();
        let trace = Trace::of(request);
        let state =
            State { trace, about: None, meter: None, first: None, outcome: None, passed_on: false };
        Self {
            metrics,
            spans,
            model: model.clone(),
            priority,
            came: Instant::now(),
            came_at: SystemTime::now(),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns a span for the log lines about the delivery.
    pub(crate) fn log(&self) -> tracing::Span {
        self.state.lock().trace.log()
    }

    /// Records that the request was opened.
    pub(crate) fn opened(&self, request: &AdmittedRequest) {
        let waited = self.came_at.duration_since(request.submitted_at).unwrap_or_default();
        self.metrics.opened(self.priority, waited);
        self.state.lock().about = Some((request.job_key.id.to_string(), request.attempt.0));
    }

    /// Records that the request has its slot and runs.
    pub(crate) fn runs(&self) {
        self.state.lock().meter = Some(self.metrics.request(self.came));
    }

    /// Records the previous attempt, if the client sent its span.
    pub(crate) fn follows(&self, before: Option<TraceParent>) {
        self.state.lock().trace.follow(before);
    }

    /// Records the number of pieces sent, `resumed` ones included.
    pub(crate) fn sent(&self, position: usize, resumed: usize) {
        let mut state = self.state.lock();
        if let Some(meter) = &mut state.meter {
            meter.resumed(resumed);
            meter.sent(position);
        }
        if position > resumed && state.first.is_none() {
            state.first = Some(SystemTime::now());
        }
    }

    /// Returns the parent of the handler's own spans.
    pub(crate) fn call(&self) -> TraceParent {
        self.state.lock().trace.call()
    }

    /// Records the end of the handler's call.
    pub(crate) fn called(
        &self,
        began: SystemTime,
        reader: &Reader,
        usage: Usage,
        code: Option<ErrorCode>,
    ) {
        let state = self.state.lock();
        let mut span = state.trace.called(self.model.as_str(), began);
        if let Some(first) = state.first {
            span = span.event("first piece", first);
        }
        self.spans.end(failed(cost(span, usage, reader.len(), reader.resumed()), code));
    }

    /// Writes the trace parent of this attempt into a reply.
    pub(crate) fn sign(&self, reply: &mut Properties) {
        put(reply, header::TRACE_PARENT, self.state.lock().trace.process());
    }

    /// Returns the trace parent of this attempt for a copy of the request.
    pub(crate) fn span(&self) -> TraceParent {
        self.state.lock().trace.process()
    }

    /// Records that a run which had lost its own delivery adopted this one.
    pub(crate) fn adopted(&self) {
        self.metrics.adopted();
        self.state.lock().passed_on = true;
    }

    /// Records the outcome of the request.
    pub(crate) fn ended(&self, outcome: Outcome) {
        let mut state = self.state.lock();
        state.outcome = Some(outcome);
        match state.meter.take() {
            Some(meter) => meter.ended(outcome),
            None => self.metrics.ended(outcome),
        }
    }

    /// Ends the measurements after the settlement.
    pub(crate) fn settled(self) {
        let state = self.state.into_inner();
        if state.passed_on {
            return;
        }
        let code = match state.outcome {
            Some(Outcome::Failed(code)) => Some(code),
            _ => None,
        };
        self.metrics.processed(self.came.elapsed(), code.is_some());
        let queue = request_queue(&self.model, self.priority);
        let span = failed(state.trace.processed(&queue, self.came_at), code);
        self.spans.end(match &state.about {
            Some((request, attempt)) => about(span, request, *attempt),
            None => span,
        });
    }
}
