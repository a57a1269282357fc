//! Decisions on the number of workers of one model.
//!
//! A [`Policy`] is a state machine without clock and network: an [`Observation`] goes in, a [`Decision`] with its
//! reason comes out. [`crate::simulate`] observes a simulated cluster, and [`replay()`] a log.
//!
//! A [`Rule`] computes a number. It counts workers that were asked for, so those that boot are not asked for again.
//! What follows holds for all rules except [`Rule::Fixed`]:
//!
//! - A larger number counts at once, a smaller one when it has held for `scale_in_delay_s`: the largest number of
//!   that time counts.
//! - A request that waits or runs gets at least one worker. The last worker goes after `idle_s` without a request.
//! - Floors by the time of day, the minimum and the maximum bound the number, and the maximum wins.
//!
//! # What no policy can do
//!
//! A worker that is asked for takes requests only after its boot time. A load that rises faster than that waits until
//! the boot ends, or until the workers that are there have worked it off, with every rule that reacts to load: its
//! longest waits are close to the shorter one of the two times. What helps are workers that are there before the
//! burst (a minimum, a floor by the time of day), and a shorter boot (a baked image, a cached model). Seconds of
//! backlog are no forecast.

mod decision;
mod floor;
mod observation;
mod replay;
mod rule;
mod smooth;
#[cfg(test)]
mod tests;
mod window;

use serde::{Deserialize, Serialize};

pub use self::decision::{Backlog, Decision, Reason};
pub(crate) use self::floor::DAY_S;
pub use self::floor::{Floor, TimeOfDay};
pub use self::observation::Observation;
pub use self::replay::replay;
use self::rule::RuleState;
pub use self::rule::{BacklogSeconds, Fixed, PerWorker, Rule};
use self::window::Window;
use crate::error::{Error, not_negative, refuse};

/// Largest maximum of workers of a model.
const MAX_WORKERS: u32 = 10_000;

/// Options of a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Smallest number of workers.
    #[serde(default)]
    pub min: u32,
    /// Largest number of workers, from 1 to 10,000.
    pub max: u32,
    /// Smallest numbers of workers by the time of day, such as `08:00-20:00 = 4`. The largest one of a time counts.
    #[serde(default)]
    pub floors: Vec<Floor>,
    /// Time for which a smaller number must hold, in seconds.
    #[serde(default = "five_minutes")]
    pub scale_in_delay_s: f64,
    /// Time without a request after which the last worker goes, in seconds.
    #[serde(default = "five_minutes")]
    pub idle_s: f64,
    /// Rule.
    pub rule: Rule,
}

/// Default times of Kubernetes' autoscaler and of KEDA.
fn five_minutes() -> f64 {
    300.0
}

impl Options {
    /// Makes options with default times, a minimum of zero, and no floors.
    pub fn new(max: u32, rule: Rule) -> Self {
        let (scale_in_delay_s, idle_s) = (five_minutes(), five_minutes());
        Self { min: 0, max, floors: Vec::new(), scale_in_delay_s, idle_s, rule }
    }

    /// Checks all options.
    ///
    /// # Errors
    ///
    /// Returns an error with the first option that cannot be used.
    pub fn check(&self) -> Result<(), Error> {
        if !(1..=MAX_WORKERS).contains(&self.max) {
            return refuse("max", &self.max, format!("set it to a number from 1 to {MAX_WORKERS}"));
        }
        if self.min > self.max {
            return refuse(
                "min",
                &self.min,
                format!("set it to at most max, which is {}", self.max),
            );
        }
        if let Some(floor) = self.floors.iter().find(|floor| floor.workers() > self.max) {
            return refuse(
                "floors",
                &floor,
                format!("set it to at most max, which is {}", self.max),
            );
        }
        if let Rule::Fixed(fixed) = &self.rule
            && !(self.min..=self.max).contains(&fixed.workers)
        {
            let expected =
                format!("set it to a number from min to max, {} to {}", self.min, self.max);
            return refuse("rule.workers", &fixed.workers, expected);
        }
        not_negative("scale_in_delay_s", self.scale_in_delay_s, "seconds")?;
        not_negative("idle_s", self.idle_s, "seconds")?;
        self.rule.check()
    }
}

/// State machine that decides on the number of workers of one model.
#[derive(Clone, Debug)]
pub struct Policy {
    options: Options,
    state: RuleState,
    recent: Window,
    /// Time of the last observation.
    at_s: Option<f64>,
    /// Time of the last observation with a request.
    busy_s: f64,
}

impl Policy {
    /// Creates a policy.
    ///
    /// # Errors
    ///
    /// Returns an error with the first option that cannot be used.
    pub fn new(options: Options) -> Result<Self, Error> {
        options.check()?;
        let state = RuleState::new(&options.rule);
        let recent = Window::new(options.scale_in_delay_s);
        Ok(Self { options, state, recent, at_s: None, busy_s: 0.0 })
    }

    /// Options of the policy.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Decides on the number of workers.
    ///
    /// Times that go back count as the time of the last observation. Averages that are not positive numbers count as
    /// not measured.
    pub fn decide(&mut self, observation: &Observation) -> Decision {
        let seen = observation.normalized(self.at_s.unwrap_or_default());
        let is_first = self.at_s.replace(seen.at_s).is_none();
        if is_first || seen.is_busy() {
            self.busy_s = seen.at_s;
        }
        if is_first && seen.workers() > 0 {
            // A scaler that restarts does not know what was needed before. It removes no worker at once.
            self.recent.add(seen.at_s, seen.workers().min(self.options.max));
        }
        let (wanted, reason) = self.state.wanted(&seen);
        if reason == Reason::Fixed {
            return self.bounded(&seen, wanted, reason);
        }
        let (wanted, reason) = self.not_too_soon(&seen, wanted, reason);
        let (wanted, reason) = self.zero(&seen, wanted, reason);
        self.bounded(&seen, wanted, reason)
    }

    /// Lets a smaller number count only when it has held for the delay.
    fn not_too_soon(&mut self, seen: &Observation, wanted: u32, reason: Reason) -> (u32, Reason) {
        let largest = self.recent.add(seen.at_s, wanted);
        if largest == wanted {
            return (wanted, reason);
        }
        (largest, Reason::Held { lower: wanted, delay_s: self.options.scale_in_delay_s })
    }

    /// Decides between zero workers and one.
    fn zero(&self, seen: &Observation, wanted: u32, reason: Reason) -> (u32, Reason) {
        let (idle_s, limit_s) = (seen.at_s - self.busy_s, self.options.idle_s);
        let is_busy = seen.is_busy();
        if !is_busy && idle_s >= limit_s {
            (0, Reason::Idle { idle_s })
        } else if wanted == 0 && is_busy {
            (1, Reason::Busy { waiting: seen.waiting() })
        } else if wanted == 0 && seen.workers() > 0 {
            (1, Reason::IdleSoon { idle_s, limit_s })
        } else {
            (wanted, reason)
        }
    }

    /// Applies floors, minimum and maximum.
    fn bounded(&self, seen: &Observation, wanted: u32, reason: Reason) -> Decision {
        let of_time = self.options.floors.iter().filter(|it| it.contains(seen.time_of_day_s));
        let floor = of_time.max_by_key(|floor| floor.workers());
        let Options { min, max, .. } = self.options;
        match floor {
            _ if wanted > max => Decision { desired: max, reason: Reason::Maximum { wanted } },
            Some(&floor) if floor.workers() > wanted.max(min) => {
                Decision { desired: floor.workers(), reason: Reason::Floor { floor, wanted } }
            }
            _ if wanted < min => Decision { desired: min, reason: Reason::Minimum { wanted } },
            _ => Decision { desired: wanted, reason },
        }
    }
}
