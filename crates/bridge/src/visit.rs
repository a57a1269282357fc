//! One delivery in this worker, as it is measured and traced.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use nsbridge_handler::transcript::Reader;
use nsbridge_protocol::topology::{header, model_queue};
use nsbridge_protocol::{ErrorCode, ModelName, TraceParent, Usage};
use nsbridge_queue::{Message, Properties};
use tokio::time::Instant;

use crate::intake::Accepted;
use crate::metrics::{Metrics, Outcome, RequestMeter};
use crate::telemetry::{Spans, Trace, put};
use crate::vitals::Vitals;

/// What is measured of one delivery, from its coming to its settlement.
#[derive(Debug)]
pub(crate) struct Visit {
    metrics: Metrics,
    spans: Spans,
    model: ModelName,
    came: Instant,
    came_at: SystemTime,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    trace: Trace,
    /// Request and attempt, once they are known.
    about: Option<(String, u32)>,
    meter: Option<RequestMeter>,
    outcome: Option<Outcome>,
    passed_on: bool,
}

impl Visit {
    /// A delivery came.
    pub(crate) fn begin(vitals: &Vitals, model: &ModelName, request: &Message) -> Self {
        let Vitals { metrics, spans, .. } = vitals.clone();
        metrics.consumed();
        let trace = Trace::of(request);
        let state = State { trace, about: None, meter: None, outcome: None, passed_on: false };
        Self {
            metrics,
            spans,
            model: model.clone(),
            came: Instant::now(),
            came_at: SystemTime::now(),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// A span for the log lines about it.
    pub(crate) fn log(&self) -> tracing::Span {
        self.state().trace.log()
    }

    /// It was opened.
    pub(crate) fn opened(&self, request: &Accepted) {
        self.metrics.opened(self.came_at.duration_since(request.submitted_at).unwrap_or_default());
        self.state().about = Some((request.job.id.to_string(), request.attempt.0));
    }

    /// It has its place, and runs.
    pub(crate) fn runs(&self) {
        self.state().meter = Some(self.metrics.request(self.came));
    }

    /// The client told of the attempt before.
    pub(crate) fn follows(&self, before: Option<TraceParent>) {
        self.state().trace.follow(before);
    }

    /// So many pieces were sent, those included that were there before.
    pub(crate) fn sent(&self, position: usize, resumed: usize) {
        if let Some(meter) = &mut self.state().meter {
            meter.resumed(resumed);
            meter.sent(position);
        }
    }

    /// What the handler's own spans are children of.
    pub(crate) fn call(&self) -> TraceParent {
        self.state().trace.call()
    }

    /// The handler's call has ended.
    pub(crate) fn called(
        &self,
        began: SystemTime,
        reader: &Reader,
        usage: Usage,
        code: Option<ErrorCode>,
    ) {
        let span = self.state().trace.called(self.model.as_str(), began);
        self.spans.end(span.cost(usage, reader.len(), reader.resumed()).failed(code));
    }

    /// Writes where this attempt stands in traces: on a reply.
    pub(crate) fn sign(&self, reply: &mut Properties) {
        put(reply, header::TRACE_PARENT, self.state().trace.process());
    }

    /// Where this attempt stands in traces: on a copy of the request.
    pub(crate) fn span(&self) -> TraceParent {
        self.state().trace.process()
    }

    /// It was handed to a run that had lost its own delivery.
    pub(crate) fn adopted(&self) {
        self.metrics.adopted();
        self.state().passed_on = true;
    }

    /// It ended like this.
    pub(crate) fn ended(&self, outcome: Outcome) {
        let mut state = self.state();
        state.outcome = Some(outcome);
        match state.meter.take() {
            Some(meter) => meter.ended(outcome),
            None => self.metrics.ended(outcome),
        }
    }

    /// It is settled, and nothing more is done for it.
    pub(crate) fn settled(self) {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if state.passed_on {
            return;
        }
        let code = match state.outcome {
            Some(Outcome::Failed(code)) => Some(code),
            _ => None,
        };
        self.metrics.processed(self.came.elapsed(), code.is_some());
        let span = state.trace.processed(&model_queue(&self.model), self.came_at).failed(code);
        self.spans.end(match &state.about {
            Some((request, attempt)) => span.about(request, *attempt),
            None => span,
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
