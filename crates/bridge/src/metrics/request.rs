//! The figures of one request, from its delivery to its end.

use std::time::Duration;

use nsbridge_protocol::{ErrorCode, Usage};
use tokio::time::Instant;

use super::{Metrics, error_type};

/// The kinds of tokens that are counted.
pub(super) const TOKEN_TYPES: [&str; 3] = ["input", "output", "cached"];

/// How a request ended in this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With a whole reply, that cost so much.
    Ok(Usage),
    /// It went back to the queue, for another worker to go on.
    Moved,
    /// The model failed, and it waits to be tried again.
    Retried,
    /// Its client was told, or is gone.
    Failed(ErrorCode),
}

impl Outcome {
    /// All values of the label.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        ["ok", "moved", "retried"].into_iter().chain(ErrorCode::ALL.map(ErrorCode::as_str))
    }

    /// What the handler counted, if the request came to that.
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

/// Counts one request as running, for as long as it lives.
#[derive(Debug)]
pub(crate) struct RequestMeter {
    metrics: Metrics,
    began: Instant,
    /// Pieces that are this request's part of the tokens in flight.
    pieces: usize,
    resumed: usize,
    /// When a frame with a new piece was first sent, and last.
    sent: Option<(Instant, Instant)>,
}

impl Metrics {
    /// A request runs; it was delivered at `began`.
    pub(crate) fn request(&self, began: Instant) -> RequestMeter {
        self.0.running.inc();
        self.0.load.send_modify(|running| *running += 1);
        RequestMeter { metrics: self.clone(), began, pieces: 0, resumed: 0, sent: None }
    }
}

impl RequestMeter {
    /// The handler went on after this many pieces of an earlier attempt.
    pub(crate) fn resumed(&mut self, pieces: usize) {
        if pieces == 0 || self.resumed > 0 {
            return;
        }
        self.resumed = pieces;
        self.metrics.0.resumes.inc();
        self.metrics.0.resumed_pieces.inc_by(pieces as u64);
        self.hold(pieces);
    }

    /// A frame was sent, up to piece number `position` of the reply. What an earlier frame had,
    /// under another key, is not counted again.
    pub(crate) fn sent(&mut self, position: usize) {
        if position <= self.pieces {
            return;
        }
        let now = Instant::now();
        self.sent = Some((self.sent.map_or(now, |(first, _)| first), now));
        self.hold(position);
    }

    /// The request ended.
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
        let usage = if usage == Usage::default() {
            Usage { output_tokens: self.pieces as u64, ..usage }
        } else {
            usage
        };
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

/// Seconds between two of `made` pieces: the first has none before it.
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
