//! Decisions with their reasons.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::floor::Floor;

/// Number of workers that a model is to have. Its text is one sentence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Decision {
    /// Workers, including those that do not take requests yet.
    pub desired: u32,
    /// Reason for this number.
    pub reason: Reason,
}

/// Reason for a number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Reason {
    /// Number that the options set.
    Fixed,
    /// Tokens that arrive and tokens that wait.
    Backlog(Backlog),
    /// Backlog that would need more workers, while some that were asked for do not take requests yet.
    Pending {
        /// Number that the load needs.
        wanted: u32,
        /// Workers that do not take requests yet.
        pending: u32,
    },
    /// Requests that wait or run, for a number of requests per worker.
    Requests {
        /// Requests.
        requests: u64,
        /// Requests per worker.
        per_worker: f64,
    },
    /// Requests that wait, for a number of waiting requests per worker.
    Queue {
        /// Waiting requests.
        ready: u64,
        /// Waiting requests per worker.
        per_worker: f64,
    },
    /// Number that was needed within the delay of scale-in.
    Held {
        /// Number that is needed now.
        lower: u32,
        /// Delay of scale-in in seconds.
        delay_s: f64,
    },
    /// Requests, for which there is at least one worker.
    Busy {
        /// Requests that wait.
        waiting: u64,
    },
    /// Idle time that is shorter than the one after which the last worker goes.
    IdleSoon {
        /// Time without a request in seconds.
        idle_s: f64,
        /// Time after which the last worker goes, in seconds.
        limit_s: f64,
    },
    /// Idle time after which the last worker goes.
    Idle {
        /// Time without a request in seconds.
        idle_s: f64,
    },
    /// Floor of this time of day.
    Floor {
        /// Floor.
        floor: Floor,
        /// Number that is needed.
        wanted: u32,
    },
    /// Smallest number of the options.
    Minimum {
        /// Number that is needed.
        wanted: u32,
    },
    /// Largest number of the options.
    Maximum {
        /// Number that is needed.
        wanted: u32,
    },
}

/// Numbers of the rule of backlog seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Backlog {
    /// Tokens that arrive per second, smoothed.
    pub arriving_tokens_per_s: f64,
    /// Tokens of the waiting interactive requests.
    pub waiting_tokens: f64,
    /// Tokens of the waiting bulk requests.
    pub bulk_tokens: f64,
    /// Tokens per second of one worker.
    pub worker_tokens_per_s: f64,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.desired == 1 { "" } else { "s" };
        write!(f, "{} worker{plural}: {}", self.desired, self.reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed => f.write_str("the number is fixed"),
            Self::Backlog(backlog) => backlog.fmt(f),
            Self::Pending { wanted, pending } => {
                write!(f, "the load needs {wanted}, and {pending} asked for are not ready yet")
            }
            Self::Requests { requests, per_worker } => {
                write!(f, "{requests} requests wait or run, {per_worker} for each worker")
            }
            Self::Queue { ready, per_worker } => {
                write!(f, "{ready} requests wait, {per_worker} for each worker")
            }
            Self::Held { lower, delay_s } => {
                write!(f, "the load needs {lower}, and needed more within the last {delay_s} s")
            }
            Self::Busy { waiting } => write!(f, "{waiting} requests wait, and others may run"),
            Self::IdleSoon { idle_s, limit_s } => {
                write!(
                    f,
                    "no request for {idle_s:.0} s, and the last worker goes after {limit_s} s"
                )
            }
            Self::Idle { idle_s } => write!(f, "no request for {idle_s:.0} s"),
            Self::Floor { floor, wanted } => {
                write!(f, "the load needs {wanted}, and the floor is {floor}")
            }
            Self::Minimum { wanted } => {
                write!(f, "the load needs {wanted}, and this is the minimum")
            }
            Self::Maximum { wanted } => {
                write!(f, "the load needs {wanted}, and this is the maximum")
            }
        }
    }
}

impl fmt::Display for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arriving_tokens_per_s, waiting_tokens, bulk_tokens, worker_tokens_per_s } = self;
        write!(f, "{arriving_tokens_per_s:.0} tokens/s arrive, {waiting_tokens:.0} tokens wait")?;
        if *bulk_tokens > 0.0 {
            write!(f, " and {bulk_tokens:.0} more of bulk requests")?;
        }
        write!(f, ", and a worker makes {worker_tokens_per_s:.0} tokens/s")
    }
}
