//! Measurements of one request, from its delivery to its end.

use std::time::Duration;

use nsbridge_protocol::{ErrorCode, Usage};
use tokio::time::Instant;

use super::{Metrics, error_type};

/// Kinds of tokens that are counted.
pub(super) const TOKEN_TYPES: [&str; 3] = ["input", "output", "cached"];

/// End of a request in this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A whole reply, with its token usage.
    Ok(Usage),
    /// The request went back to the queue, for another worker to continue.
    Moved,
    /// The model failed, and the request waits for another try.
    Retried,
    /// The request failed: its client received this code, or is gone.
    Failed(ErrorCode),
}

impl Outcome {
    /// Returns all values of the label.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        ["ok", "moved", "retried"].into_iter().chain(ErrorCode::ALL.map(ErrorCode::as_str))
    }

    /// Returns the handler's token counts; zeros if the request did not succeed.
    pub(crate) fn usage(self) -> Usage {
        if let Self::Ok(usage) = self { usage } else { Usage::default() }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok(_) => "ok",
            Self::Moved => "moved",
            Self::Retried => "retried",
            Self::Failed(code) => code.as_str(),
        }
    }
}

/// Meter of one request, which counts as running until this is dropped.
#[derive(Debug)]
pub(crate) struct RequestMeter {
    metrics: Metrics,
    began: Instant,
    /// Number of pieces that this request adds to the tokens in flight.
    pieces: usize,
    resumed: usize,
    /// Time of the first and of the last frame with a new piece.
    sent: Option<(Instant, Instant)>,
}

impl Metrics {
    /// Begins the measurements of a request that runs and was delivered at `began`.
    pub(crate) fn request(&self, began: Instant) -> RequestMeter {
        self.0.running.inc();
        self.0.load.send_modify(|running| *running += 1);
        RequestMeter { metrics: self.clone(), began, pieces: 0, resumed: 0, sent: None }
    }
}

impl RequestMeter {
    /// Records that the handler resumed after this many pieces of an earlier attempt.
    pub(crate) fn resumed(&mut self, pieces: usize) {
        if pieces == 0 || self.resumed > 0 {
            return;
        }
        self.resumed = pieces;
        self.metrics.0.resumes.inc();
        self.metrics.0.resumed_pieces.inc_by(pieces as u64);
        self.hold(pieces);
    }

    /// Records a frame with pieces up to number `position` of the reply. Pieces of an earlier
    /// frame, under another key, are not counted again.
    pub(crate) fn sent(&mut self, position: usize) {
        if position <= self.pieces {
            return;
        }
        let now = Instant::now();
        self.sent = Some((self.sent.map_or(now, |(first, _)| first), now));
        self.hold(position);
    }

    /// Records the end of the request.
    pub(crate) fn ended(self, outcome: Outcome) {
        let inner = &self.metrics.0;
        self.metrics.ended(outcome);
        let took = self.began.elapsed().as_secs_f64();
        let Outcome::Ok(usage) = outcome else {
            inner.durations.of(error_type(true)).observe(took);
            return;
        };
        inner.durations.of(error_type(false)).observe(took);
        let made = self.pieces - self.resumed;
        if let Some((first, last)) = self.sent {
            inner.first_token.observe((first - self.began).as_secs_f64());
            if let Some(each) = average(last - first, made) {
                inner.per_token.observe(each);
            }
        }
        let usage =
            if usage == Usage::default() { Usage::new(0, self.pieces as u64) } else { usage };
        let counts = [usage.input_tokens, usage.output_tokens, usage.cached_tokens];
        for (kind, count) in TOKEN_TYPES.into_iter().zip(counts) {
            inner.token_usage.of(kind).observe(count as f64);
        }
    }

    fn hold(&mut self, pieces: usize) {
        self.metrics.0.tokens_running.inc_by(pieces as i64 - self.pieces as i64);
        self.pieces = pieces;
    }
}

/// Returns the mean time between two of `made` pieces, in seconds. The first piece has none before
/// it.
fn average(spent: Duration, made: usize) -> Option<f64> {
    (made > 1).then(|| spent.as_secs_f64() / (made - 1) as f64)
}

impl Drop for RequestMeter {
    fn drop(&mut self) {
        let inner = &self.metrics.0;
        inner.running.dec();
        inner.tokens_running.dec_by(self.pieces as i64);
        inner.load.send_modify(|running| *running -= 1);
    }
}
