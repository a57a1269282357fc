//! Numbers that a decision is made from.

use serde::{Deserialize, Serialize, Serializer};

use super::floor::DAY_S;

/// State of a model's queue and workers at one time.
///
/// Requests are sealed, so there are counts of requests and no counts of their tokens. The workers tell the tokens
/// per request and per second on average. Numbers with fractions count to three decimals, in decisions and in
/// JSON, so that a log gives the decisions that were made live.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Observation {
    /// Time in seconds since the scaler started.
    #[serde(serialize_with = "thousandths_only")]
    pub at_s: f64,
    /// Local time in seconds since midnight.
    #[serde(serialize_with = "thousandths_only")]
    pub time_of_day_s: f64,
    /// Interactive requests that wait in the queue.
    pub ready_interactive: u64,
    /// Bulk requests that wait in the queue.
    pub ready_bulk: u64,
    /// Requests that workers compute.
    pub in_flight: u64,
    /// Workers that take requests.
    pub running: u32,
    /// Workers that were asked for and do not take requests yet.
    pub pending: u32,
    /// Interactive requests that were published since the last observation.
    pub arrived: u64,
    /// Moving average of the tokens of a reply, or `None` if no worker has told it.
    #[serde(serialize_with = "optional_thousandths")]
    pub tokens_per_request: Option<f64>,
    /// Tokens per second of a worker whose places are all busy, or `None` if it was not measured.
    #[serde(serialize_with = "optional_thousandths")]
    pub worker_tokens_per_s: Option<f64>,
}

/// Largest number with fractions that counts. Larger ones count as it.
const MAX_NUMBER: f64 = 1e12;

impl Observation {
    /// Requests that wait, interactive and bulk ones.
    pub fn waiting(&self) -> u64 {
        self.ready_interactive.saturating_add(self.ready_bulk)
    }

    /// Workers that take requests, and those that will.
    pub fn workers(&self) -> u32 {
        self.running.saturating_add(self.pending)
    }

    /// Returns true if a request waits, runs or has arrived.
    pub fn is_busy(&self) -> bool {
        self.waiting() > 0 || self.in_flight > 0 || self.arrived > 0
    }

    /// Returns the observation as it counts: rounded, not before the one at `previous_s`, and with averages that are
    /// positive numbers or absent.
    pub(super) fn normalized(&self, previous_s: f64) -> Self {
        let at_s = if self.at_s.is_finite() { self.at_s.max(previous_s) } else { previous_s };
        let average = |value: Option<f64>| {
            let value = value.filter(|value| value.is_finite())?;
            Some(thousandths(value)).filter(|value| *value > 0.0)
        };
        let in_day = self.time_of_day_s.rem_euclid(DAY_S);
        Self {
            at_s: thousandths(at_s),
            time_of_day_s: if in_day.is_finite() { thousandths(in_day) } else { 0.0 },
            tokens_per_request: average(self.tokens_per_request),
            worker_tokens_per_s: average(self.worker_tokens_per_s),
            ..*self
        }
    }
}

/// Rounds to three decimals. The result is the number that its own decimal text is read as.
fn thousandths(value: f64) -> f64 {
    (value.clamp(-MAX_NUMBER, MAX_NUMBER) * 1000.0).round() / 1000.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference to the field")]
fn thousandths_only<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let finite = if value.is_finite() { *value } else { 0.0 };
    thousandths(finite).serialize(serializer)
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
fn optional_thousandths<S: Serializer>(
    value: &Option<f64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.filter(|value| value.is_finite()).map(thousandths).serialize(serializer)
}
