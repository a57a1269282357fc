//! Options of a simulated cluster.

use serde::{Deserialize, Serialize};

use crate::error::{Error, not_negative, positive, refuse};
use crate::policy::TimeOfDay;

/// Largest number of places of a worker.
const MAX_PLACES: u32 = 10_000;

/// Shortest interval of decisions in seconds.
const MIN_INTERVAL_S: f64 = 0.1;

/// Largest number of decisions.
const MAX_DECISIONS: f64 = 1e7;

/// Longest time after the last arrival in seconds: thirty days.
const MAX_TAIL_S: f64 = 30.0 * 86_400.0;

/// Speed and size of a worker. There are no defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerSpec {
    /// Requests that it computes at once.
    pub places: u32,
    /// Tokens per second of all its replies together, at most.
    pub tokens_per_s: f64,
    /// Tokens per second of one reply, at most.
    pub stream_tokens_per_s: f64,
    /// Tokens per second of prompts.
    pub prefill_tokens_per_s: f64,
}

/// Spot workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spot {
    /// Price of a worker and hour.
    pub per_hour: f64,
    /// Time from a worker's start to its interruption on average, in hours. The times are exponential.
    pub mean_hours: f64,
    /// Time from the notice to the end, in seconds.
    #[serde(default = "two_minutes")]
    pub notice_s: f64,
}

fn two_minutes() -> f64 {
    120.0
}

/// Options of a simulated cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    /// Workers.
    pub worker: WorkerSpec,
    /// Time from the request for a worker until it takes requests, in seconds.
    pub boot_s: f64,
    /// Time after which a worker that is to go returns its requests, in seconds.
    pub hand_over_s: f64,
    /// Time between two decisions in seconds.
    pub decision_interval_s: f64,
    /// Price of a worker on demand and hour.
    pub on_demand_per_hour: f64,
    /// Workers that are on demand even if there are spot workers.
    pub on_demand_base: u32,
    /// Spot workers, or `None` if all are on demand.
    pub spot: Option<Spot>,
    /// Time of day at the start of the trace.
    pub starts: TimeOfDay,
    /// Time after the end of the trace within which requests may end, in seconds.
    pub tail_s: f64,
    /// Seed of the interruptions.
    pub seed: u64,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            worker: WorkerSpec::default(),
            boot_s: 180.0,
            hand_over_s: 120.0,
            decision_interval_s: 15.0,
            on_demand_per_hour: 0.0,
            on_demand_base: 0,
            spot: None,
            starts: TimeOfDay::default(),
            tail_s: 86_400.0,
            seed: 1,
        }
    }
}

impl WorkerSpec {
    fn check(&self) -> Result<(), Error> {
        if !(1..=MAX_PLACES).contains(&self.places) {
            let expected = format!("set it to a number from 1 to {MAX_PLACES}");
            return refuse("worker.places", &self.places, expected);
        }
        positive("worker.tokens_per_s", self.tokens_per_s, "tokens/s")?;
        positive("worker.stream_tokens_per_s", self.stream_tokens_per_s, "tokens/s")?;
        positive("worker.prefill_tokens_per_s", self.prefill_tokens_per_s, "tokens/s")
    }

    /// Returns the tokens per second of one reply beside others.
    pub(super) fn stream_speed(&self, replies: usize) -> f64 {
        self.stream_tokens_per_s.min(self.tokens_per_s / replies.max(1) as f64)
    }

    /// Returns the tokens per second of replies that a worker reaches when all its places are always busy with requests
    /// of these mean lengths, or `None` if replies have no tokens.
    pub fn busy_tokens_per_s(&self, input_tokens: f64, output_tokens: f64) -> Option<f64> {
        let places = f64::from(self.places);
        let prefill_s = input_tokens / self.prefill_tokens_per_s;
        let reply_s = output_tokens / self.stream_speed(self.places as usize);
        // Prefills queue for the worker, so it computes no more requests than they allow.
        let requests_per_s = (places / (prefill_s + reply_s)).min(1.0 / prefill_s);
        let tokens_per_s = requests_per_s * output_tokens;
        (tokens_per_s > 0.0 && tokens_per_s.is_finite()).then_some(tokens_per_s)
    }
}

impl Cluster {
    /// Checks all options.
    ///
    /// # Errors
    ///
    /// Returns an error with the first option that cannot be used.
    pub fn check(&self) -> Result<(), Error> {
        self.worker.check()?;
        not_negative("boot_s", self.boot_s, "seconds")?;
        not_negative("hand_over_s", self.hand_over_s, "seconds")?;
        positive("decision_interval_s", self.decision_interval_s, "seconds")?;
        if self.decision_interval_s < MIN_INTERVAL_S {
            let expected = format!("set it to at least {MIN_INTERVAL_S}");
            return refuse("decision_interval_s", &self.decision_interval_s, expected);
        }
        not_negative("on_demand_per_hour", self.on_demand_per_hour, "a currency")?;
        if !(0.0..=MAX_TAIL_S).contains(&self.tail_s) {
            return refuse(
                "tail_s",
                &self.tail_s,
                "set it to a number of seconds from 0 to 30 days",
            );
        }
        if let Some(spot) = &self.spot {
            not_negative("spot.per_hour", spot.per_hour, "a currency")?;
            positive("spot.mean_hours", spot.mean_hours, "hours")?;
            not_negative("spot.notice_s", spot.notice_s, "seconds")?;
        }
        Ok(())
    }

    /// Checks that a trace of this length needs no excessive number of decisions.
    pub(super) fn check_decisions(&self, duration_s: f64) -> Result<(), Error> {
        let decisions = (duration_s + self.tail_s) / self.decision_interval_s;
        if decisions <= MAX_DECISIONS {
            return Ok(());
        }
        let expected = format!(
            "there may be {decisions:.0} decisions, of at most {MAX_DECISIONS}; set it higher"
        );
        refuse("decision_interval_s", &self.decision_interval_s, expected)
    }
}
