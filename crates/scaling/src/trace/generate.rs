//! Seeded generator of a trace: a daily curve with bursts, and log-normal lengths.

use serde::{Deserialize, Serialize};

use super::{MAX_DURATION_S, Request, Trace};
use crate::error::{Error, not_negative, positive, refuse};
use crate::math::cos_turns;
use crate::policy::{DAY_S, TimeOfDay};
use crate::rng::Rng;

/// Most requests of a generated trace, on average.
const MAX_REQUESTS: f64 = 2e7;

/// Largest number of bursts.
const MAX_BURSTS: u32 = 10_000;

/// Largest standard deviation of a length's logarithm: a factor of 20.
const MAX_SIGMA: f64 = 3.0;

/// Largest length of a prompt or reply in tokens.
const MAX_TOKENS: f64 = 10_000_000.0;

/// Lengths of a log-normal distribution, from 1 token on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    /// Median in tokens.
    pub median: f64,
    /// Standard deviation of the logarithm, from 0 to 3.
    pub sigma: f64,
}

/// Load of a day, or of a part of one or several days, from which a trace is generated.
///
/// Requests arrive as a Poisson process, whose rate is a cosine over 24 hours. A burst multiplies it. Equal options
/// give equal traces on every machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Day {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Length of the trace in seconds.
    pub duration_s: f64,
    /// Time of day at which the trace begins.
    pub starts: TimeOfDay,
    /// Requests per second, averaged over a day without bursts.
    pub requests_per_s: f64,
    /// Difference of the busiest time's rate from the average, as a share of the average, from 0 to 1.
    pub swing: f64,
    /// Hour of the busiest time, from 0 to 24.
    pub busiest_hour: f64,
    /// Number of bursts, at random times.
    pub bursts: u32,
    /// Length of a burst in seconds.
    pub burst_s: f64,
    /// Factor of the rate within a burst, at least 1. Bursts that overlap do not multiply.
    pub burst_factor: f64,
    /// Lengths of prompts.
    pub input: Lengths,
    /// Lengths of replies.
    pub output: Lengths,
}

impl Default for Day {
    fn default() -> Self {
        Self {
            seed: 1,
            duration_s: DAY_S,
            starts: TimeOfDay::default(),
            requests_per_s: 1.0,
            swing: 0.8,
            busiest_hour: 14.0,
            bursts: 3,
            burst_s: 600.0,
            burst_factor: 2.5,
            // Close to the conversations of the Azure trace of 2023: a median prompt of 1,020 tokens, a mean reply of
            // 211.
            input: Lengths { median: 1020.0, sigma: 1.0 },
            output: Lengths { median: 130.0, sigma: 1.0 },
        }
    }
}

impl Lengths {
    fn check(&self, median: &'static str, sigma: &'static str) -> Result<(), Error> {
        positive(median, self.median, "tokens")?;
        if (0.0..=MAX_SIGMA).contains(&self.sigma) {
            return Ok(());
        }
        refuse(sigma, &self.sigma, format!("set it to a number from 0 to {MAX_SIGMA}"))
    }

    fn draw(&self, rng: &mut Rng) -> u32 {
        rng.log_normal(self.median, self.sigma).round().clamp(1.0, MAX_TOKENS) as u32
    }
}

impl Day {
    /// Generates the trace.
    ///
    /// # Errors
    ///
    /// Returns an error with the first option that cannot be used.
    pub fn trace(&self) -> Result<Trace, Error> {
        self.check()?;
        let mut rng = Rng::new(self.seed);
        let mut starts: Vec<f64> =
            (0..self.bursts).map(|_| rng.uniform() * self.duration_s).collect();
        starts.sort_by(f64::total_cmp);
        let factor = if starts.is_empty() { 1.0 } else { self.burst_factor };
        let largest_per_s = self.requests_per_s * (1.0 + self.swing) * factor;
        let (mut requests, mut at_s) = (Vec::new(), 0.0);
        // Thinning: arrivals at the largest rate, of which the share of the current rate is kept.
        loop {
            at_s += rng.exponential(1.0 / largest_per_s);
            if at_s >= self.duration_s {
                return Trace::new(requests, self.duration_s);
            }
            if rng.uniform() * largest_per_s < self.rate_per_s(at_s, &starts) {
                let (input_tokens, output_tokens) =
                    (self.input.draw(&mut rng), self.output.draw(&mut rng));
                // Microseconds, as measured traces have them.
                let at_s = ((at_s * 1e6).floor() / 1e6).min(self.duration_s);
                requests.push(Request { at_s, input_tokens, output_tokens });
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        positive("duration_s", self.duration_s, "seconds")?;
        if self.duration_s > MAX_DURATION_S {
            return refuse("duration_s", &self.duration_s, "set it to at most 366 days");
        }
        positive("requests_per_s", self.requests_per_s, "requests")?;
        if !(0.0..=1.0).contains(&self.swing) {
            return refuse("swing", &self.swing, "set it to a share from 0 to 1");
        }
        if !(0.0..=24.0).contains(&self.busiest_hour) {
            return refuse("busiest_hour", &self.busiest_hour, "set it to an hour from 0 to 24");
        }
        if self.bursts > MAX_BURSTS {
            return refuse("bursts", &self.bursts, format!("set it to at most {MAX_BURSTS}"));
        }
        not_negative("burst_s", self.burst_s, "seconds")?;
        if !(1.0..=1000.0).contains(&self.burst_factor) {
            return refuse("burst_factor", &self.burst_factor, "set it to a number from 1 to 1000");
        }
        self.input.check("input.median", "input.sigma")?;
        self.output.check("output.median", "output.sigma")?;
        let most = self.requests_per_s * 2.0 * self.burst_factor * self.duration_s;
        if most > MAX_REQUESTS {
            let expected = format!(
                "the trace may have {most:.0} requests, of at most {MAX_REQUESTS}; set it lower"
            );
            return refuse("requests_per_s", &self.requests_per_s, expected);
        }
        Ok(())
    }

    /// Returns the rate at a time; `bursts` are the times at which bursts begin, in order.
    fn rate_per_s(&self, at_s: f64, bursts: &[f64]) -> f64 {
        let of_day_s = self.starts.seconds() + at_s - self.busiest_hour * 3600.0;
        let daily = 1.0 + self.swing * cos_turns(of_day_s / DAY_S);
        // The last burst that has begun is the one that ends last.
        let begun = bursts.partition_point(|start_s| *start_s <= at_s);
        let last_s = begun.checked_sub(1).and_then(|last| bursts.get(last));
        let is_burst = last_s.is_some_and(|start_s| at_s < start_s + self.burst_s);
        self.requests_per_s * daily * if is_burst { self.burst_factor } else { 1.0 }
    }
}
