//! Meter of one reply.

use std::sync::atomic::{AtomicBool, Ordering};

use nsbridge_client::ModelName;
use nsbridge_gateway_replies::{Meter, Observer, Outcome};
use tokio::time::Instant;

use super::{Labels, Metrics, known, names};

/// Names of the outcomes of replies.
pub(super) const OUTCOMES: [&str; 3] = ["cancelled", "done", "failed"];

/// Meter of a reply.
#[derive(Debug)]
struct ReplyMeter {
    metrics: Metrics,
    /// Absent for a model that is not in the configuration any more.
    labels: Option<Labels<2>>,
    began: Instant,
    has_piece: AtomicBool,
    outcome: Outcome,
}

impl Meter for ReplyMeter {
    fn piece(&self) {
        if self.has_piece.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(labels) = &self.labels {
            let first = self.metrics.0.first_chunk.get_or_create_owned(labels);
            first.observe(self.began.elapsed().as_secs_f64());
        }
    }

    fn end(mut self: Box<Self>, outcome: Outcome) {
        self.outcome = outcome;
        let (Outcome::Done(usage), Some(labels)) = (outcome, &self.labels) else { return };
        let inner = &self.metrics.0;
        let took = self.began.elapsed().as_secs_f64();
        inner.durations.get_or_create_owned(labels).observe(took);
        let [model, operation] = labels.clone();
        for (kind, tokens) in [("input", usage.input_tokens), ("output", usage.output_tokens)] {
            let labels = [model.clone(), operation.clone(), ("type", kind.to_owned())];
            inner.token_usage.get_or_create_owned(&labels).observe(tokens as f64);
        }
    }
}

impl Drop for ReplyMeter {
    fn drop(&mut self) {
        self.metrics.0.running.dec();
        let end = match self.outcome {
            Outcome::Cancelled => "cancelled",
            Outcome::Done(_) => "done",
            Outcome::Failed => "failed",
        };
        self.metrics.0.replies.get_or_create_owned(&[("end", end)]).inc();
    }
}

impl Observer for Metrics {
    fn begin(&self, endpoint: &str, model: &ModelName) -> Box<dyn Meter> {
        self.0.running.inc();
        // A completion of several prompts has its number behind the word.
        let word = endpoint.split(' ').next();
        let operation = names::OPERATIONS.into_iter().find(|operation| Some(*operation) == word);
        let labels = self.0.models.get(model).zip(operation);
        Box::new(ReplyMeter {
            metrics: self.clone(),
            labels: labels.map(|(model, operation)| super::of_model(model, operation)),
            began: Instant::now(),
            has_piece: AtomicBool::new(false),
            outcome: Outcome::Cancelled,
        })
    }

    fn joined(&self) {
        self.0.joined.inc();
    }

    fn reattached(&self) {
        self.0.reattached.inc();
    }

    fn restarted(&self) {
        self.0.restarted.inc();
    }

    fn reserved(&self, tokens: u64) {
        self.0.reserved.inc_by(tokens);
    }

    fn settled(&self, tokens: u64) {
        self.0.settled.inc_by(tokens);
    }

    fn failed(&self, code: &str) {
        self.0.failed.get_or_create_owned(&[("code", known(code))]).inc();
    }
}
