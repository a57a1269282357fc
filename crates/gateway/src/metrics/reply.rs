//! Meter of one reply.

use std::sync::atomic::{AtomicBool, Ordering};

use nsbridge_client::{ModelName, Usage};
use tokio::time::Instant;

use super::{Labels, Metrics, names};

/// End of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done(Usage),
    Failed,
    /// No connection reads the reply any more, or its client has canceled it.
    Cancelled,
}

impl End {
    pub(super) const NAMES: [&str; 3] = ["cancelled", "done", "failed"];

    fn as_str(self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Meter of a reply that runs. One that is dropped before [`ReplyMeter::end`] counts as canceled.
#[derive(Debug)]
pub(crate) struct ReplyMeter {
    metrics: Metrics,
    /// Absent for a model that is not in the configuration any more.
    labels: Option<Labels<2>>,
    began: Instant,
    has_piece: AtomicBool,
    end: End,
}

impl ReplyMeter {
    /// Records a piece.
    pub(crate) fn piece(&self) {
        if self.has_piece.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(labels) = &self.labels {
            let first = self.metrics.0.first_chunk.get_or_create_owned(labels);
            first.observe(self.began.elapsed().as_secs_f64());
        }
    }

    /// Records the end.
    pub(crate) fn end(mut self, end: End) {
        self.end = end;
        let (End::Done(usage), Some(labels)) = (end, &self.labels) else { return };
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
        self.metrics.0.replies.get_or_create_owned(&[("end", self.end.as_str())]).inc();
    }
}

impl Metrics {
    /// Begins to measure a reply. `kind` is its endpoint, and the model is that of its queue.
    pub(crate) fn reply(&self, kind: &str, model: &ModelName) -> ReplyMeter {
        self.0.running.inc();
        // A completion of several prompts has its number behind the word.
        let word = kind.split(' ').next();
        let operation = names::OPERATIONS.into_iter().find(|operation| Some(*operation) == word);
        let labels = self.0.models.get(model).zip(operation);
        ReplyMeter {
            metrics: self.clone(),
            labels: labels.map(|(model, operation)| super::of_model(model, operation)),
            began: Instant::now(),
            has_piece: AtomicBool::new(false),
            end: End::Cancelled,
        }
    }
}
