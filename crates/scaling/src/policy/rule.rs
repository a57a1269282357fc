//! Rules that compute a number of workers from an observation.

use serde::{Deserialize, Serialize};

use super::decision::{Backlog, Reason};
use super::observation::Observation;
use super::smooth::Rate;
use crate::error::{Error, positive, refuse};

/// Rule of a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Rule {
    /// Fixed number of workers.
    Fixed(Fixed),
    /// Tokens that arrive, fed forward, and seconds of backlog.
    BacklogSeconds(BacklogSeconds),
    /// Requests that wait or run, divided by a number of requests per worker.
    RequestsPerWorker(PerWorker),
    /// Requests that wait, divided by a number of waiting requests per worker: the rule of KEDA's RabbitMQ scaler in
    /// its mode `QueueLength`. The tolerance of 10 % and the limits of steps upwards of Kubernetes' autoscaler are
    /// left out.
    QueueLength(PerWorker),
}

/// Options of [`Rule::Fixed`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fixed {
    /// Workers.
    pub workers: u32,
}

/// Options of [`Rule::RequestsPerWorker`] and [`Rule::QueueLength`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PerWorker {
    /// Requests for each worker. There is no default.
    pub target_requests: f64,
}

/// Options of [`Rule::BacklogSeconds`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BacklogSeconds {
    /// Tokens per second of a worker whose places are all busy, until an observation has a measured value. There is no
    /// default.
    pub worker_tokens_per_s: f64,
    /// Tokens of a reply on average, until an observation has a measured value.
    pub tokens_per_request: f64,
    /// Share of a worker's tokens per second that arriving requests may take, above 0 and at most 1.
    pub utilization: f64,
    /// Time within which the waiting interactive requests are to be worked off, in seconds.
    pub target_s: f64,
    /// Time that takes the place of `target_s` while workers boot, in seconds, if it is longer. They will work off
    /// the backlog that grows until they are ready, so a long time asks for fewer workers that come too late.
    pub pending_target_s: f64,
    /// Time within which the waiting bulk requests are to be worked off, in seconds.
    pub bulk_target_s: f64,
    /// Time constant of the arrival rate's average when it rises, in seconds.
    pub rise_s: f64,
    /// Time constant of the arrival rate's average when it falls, in seconds.
    pub fall_s: f64,
}

impl Default for BacklogSeconds {
    fn default() -> Self {
        Self {
            worker_tokens_per_s: 0.0,
            tokens_per_request: 300.0,
            utilization: 0.8,
            target_s: 15.0,
            pending_target_s: 60.0,
            bulk_target_s: 3600.0,
            rise_s: 30.0,
            fall_s: 300.0,
        }
    }
}

impl Rule {
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Fixed(_) => Ok(()),
            Self::RequestsPerWorker(options) | Self::QueueLength(options) => {
                positive("rule.target_requests", options.target_requests, "requests")
            }
            Self::BacklogSeconds(options) => options.check(),
        }
    }
}

impl BacklogSeconds {
    fn check(&self) -> Result<(), Error> {
        positive(
            "rule.worker_tokens_per_s",
            self.worker_tokens_per_s,
            "tokens/s of a busy worker",
        )?;
        positive("rule.tokens_per_request", self.tokens_per_request, "tokens")?;
        positive("rule.target_s", self.target_s, "seconds")?;
        positive("rule.pending_target_s", self.pending_target_s, "seconds")?;
        positive("rule.bulk_target_s", self.bulk_target_s, "seconds")?;
        positive("rule.rise_s", self.rise_s, "seconds")?;
        positive("rule.fall_s", self.fall_s, "seconds")?;
        if self.utilization > 0.0 && self.utilization <= 1.0 {
            return Ok(());
        }
        refuse("rule.utilization", &self.utilization, "set it to a share above 0, at most 1")
    }
}

/// Rule with its state.
#[derive(Clone, Debug)]
pub(super) enum RuleState {
    Fixed(Fixed),
    Backlog(BacklogState),
    Requests(PerWorker),
    Queue(PerWorker),
}

impl RuleState {
    pub(super) fn new(rule: &Rule) -> Self {
        match rule {
            Rule::Fixed(fixed) => Self::Fixed(fixed.clone()),
            Rule::BacklogSeconds(backlog) => Self::Backlog(BacklogState::new(backlog)),
            Rule::RequestsPerWorker(target) => Self::Requests(target.clone()),
            Rule::QueueLength(target) => Self::Queue(target.clone()),
        }
    }

    /// Returns the number of workers that the load needs.
    pub(super) fn wanted(&mut self, seen: &Observation) -> (u32, Reason) {
        match self {
            Self::Fixed(fixed) => (fixed.workers, Reason::Fixed),
            Self::Backlog(backlog) => backlog.wanted(seen),
            Self::Requests(target) => {
                let requests = seen.waiting().saturating_add(seen.in_flight);
                let per_worker = target.target_requests;
                (target.workers(requests), Reason::Requests { requests, per_worker })
            }
            Self::Queue(target) => {
                let (ready, per_worker) = (seen.waiting(), target.target_requests);
                (target.workers(ready), Reason::Queue { ready, per_worker })
            }
        }
    }
}

impl PerWorker {
    fn workers(&self, requests: u64) -> u32 {
        whole_workers(requests as f64 / self.target_requests)
    }
}

/// State of [`Rule::BacklogSeconds`].
#[derive(Clone, Debug)]
pub(super) struct BacklogState {
    options: BacklogSeconds,
    arrivals: Rate,
}

impl BacklogState {
    fn new(options: &BacklogSeconds) -> Self {
        Self { options: options.clone(), arrivals: Rate::new(options.rise_s, options.fall_s) }
    }

    fn wanted(&mut self, seen: &Observation) -> (u32, Reason) {
        let options = &self.options;
        let per_request = seen.tokens_per_request.unwrap_or(options.tokens_per_request);
        let worker_tokens_per_s = seen.worker_tokens_per_s.unwrap_or(options.worker_tokens_per_s);
        let backlog = Backlog {
            arriving_tokens_per_s: self.arrivals.add(seen.at_s, seen.arrived) * per_request,
            waiting_tokens: seen.ready_interactive as f64 * per_request,
            bulk_tokens: seen.ready_bulk as f64 * per_request,
            worker_tokens_per_s,
        };
        let arriving = backlog.arriving_tokens_per_s / (worker_tokens_per_s * options.utilization);
        let waiting = backlog.waiting_tokens / (worker_tokens_per_s * options.target_s);
        let bulk = backlog.bulk_tokens / (worker_tokens_per_s * options.bulk_target_s);
        let wanted = whole_workers(arriving + waiting + bulk);
        // The backlog grows while workers boot, and they will work it off. What they cannot work off soon is a reason
        // for more, and so are arrivals.
        let target_s = options.target_s.max(options.pending_target_s);
        let left = backlog.waiting_tokens / (worker_tokens_per_s * target_s);
        let enough = whole_workers(arriving + left + bulk).max(seen.workers());
        if seen.pending > 0 && wanted > enough {
            return (enough, Reason::Pending { wanted, pending: seen.pending });
        }
        (wanted, Reason::Backlog(backlog))
    }
}

/// Rounds up. What rounding errors add to a whole number is no worker.
fn whole_workers(workers: f64) -> u32 {
    (workers - 1e-9).ceil() as u32
}
