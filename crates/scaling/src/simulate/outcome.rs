//! Results of a simulation.

use serde::Serialize;

use crate::policy::{Decision, Observation};

/// Waiting times of requests until their first token, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Waits {
    /// Mean.
    pub mean_s: f64,
    /// Time that half of the requests do not exceed.
    pub p50_s: f64,
    /// Time that 95 % of the requests do not exceed.
    pub p95_s: f64,
    /// Time that 99 % of the requests do not exceed.
    pub p99_s: f64,
    /// Longest time.
    pub max_s: f64,
}

impl Waits {
    /// Computes percentiles by the nearest rank; all are zero without a request.
    pub(super) fn of(mut waits: Vec<f64>) -> Self {
        waits.sort_by(f64::total_cmp);
        let count = waits.len();
        let percentile = |percent: usize| {
            let rank = (count * percent).div_ceil(100).max(1);
            waits.get(rank - 1).copied().unwrap_or_default()
        };
        Self {
            mean_s: waits.iter().sum::<f64>() / count.max(1) as f64,
            p50_s: percentile(50),
            p95_s: percentile(95),
            p99_s: percentile(99),
            max_s: percentile(100),
        }
    }
}

/// Decision with the observation that it was made from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Step {
    /// Observation.
    pub observation: Observation,
    /// Decision.
    pub decision: Decision,
}

/// Result of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Outcome {
    /// Requests of the trace.
    pub requests: u64,
    /// Requests that had not ended when the simulation did.
    pub unfinished: u64,
    /// Waiting times of all requests.
    pub waits: Waits,
    /// Cost of all workers.
    pub cost: f64,
    /// Hours of workers on demand.
    pub on_demand_hours: f64,
    /// Hours of spot workers.
    pub spot_hours: f64,
    /// Workers on average over the time of the simulation, including those that boot.
    pub mean_workers: f64,
    /// Spot workers that were interrupted.
    pub interruptions: u64,
    /// Requests that went back to the queue because their worker ended.
    pub returned: u64,
    /// Tokens of replies that workers computed.
    pub tokens: u64,
    /// Decisions.
    pub decisions: u64,
    /// Time of the end in seconds.
    pub end_s: f64,
    /// All decisions in their order, with what was seen.
    pub steps: Vec<Step>,
}

impl Outcome {
    /// Hours of all workers.
    pub fn worker_hours(&self) -> f64 {
        self.on_demand_hours + self.spot_hours
    }
}

#[cfg(test)]
mod tests {
    //! Percentiles by the nearest rank.

    use super::Waits;

    #[test]
    fn percentiles_are_waits_that_occurred() {
        let waits = Waits::of((1..=200).rev().map(f64::from).collect());
        assert_eq!(
            (waits.p50_s, waits.p95_s, waits.p99_s, waits.max_s),
            (100.0, 190.0, 198.0, 200.0)
        );
        assert_eq!(waits.mean_s, 100.5);
        assert_eq!(Waits::of(vec![3.0]).p50_s, 3.0);
        assert_eq!(Waits::of(Vec::new()), Waits::default());
    }
}
