//! Figures of one moment, as the screen shows them and as `--json` prints them.
//!
//! A figure is `None` if no source has it.

use serde::Serialize;

/// Figures of one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Snapshot {
    /// Time in RFC 3339, to the second.
    pub(super) time: String,
    /// Address of the broker, if it is asked.
    pub(super) broker: Option<String>,
    pub(super) total: Total,
    /// Sentences about faults, the most urgent first.
    pub(super) problems: Vec<String>,
    pub(super) models: Vec<Model>,
    pub(super) workers: Vec<Worker>,
    pub(super) gateways: Vec<Gateway>,
}

/// Sums over all workers that can be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Total {
    pub(super) tokens_per_s: Option<f64>,
    pub(super) requests_per_s: Option<f64>,
    pub(super) errors_per_s: Option<f64>,
}

/// Model and its queues.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Model {
    pub(super) model: String,
    /// Interactive requests that wait.
    pub(super) ready: Option<u64>,
    /// Bulk requests that wait.
    pub(super) bulk: Option<u64>,
    /// Requests that run: unsettled deliveries, or else the sum over the workers that can be read.
    pub(super) in_work: Option<u64>,
    pub(super) consumers: Option<u64>,
    /// Requests in all retry queues.
    pub(super) retry: Option<u64>,
    pub(super) dead: Option<u64>,
    /// Growth of the dead letters within the window.
    pub(super) dead_new: Option<u64>,
    pub(super) published_per_s: Option<f64>,
    pub(super) settled_per_s: Option<f64>,
}

/// Worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Worker {
    pub(super) address: String,
    pub(super) model: String,
    pub(super) state: &'static str,
    pub(super) version: String,
    pub(super) revision: String,
    pub(super) running: Option<u64>,
    pub(super) slots: Option<u64>,
    pub(super) tokens_per_s: Option<f64>,
    pub(super) requests_per_s: Option<f64>,
    pub(super) errors_per_s: Option<f64>,
    pub(super) first_token_p50_s: Option<f64>,
    pub(super) first_token_p95_s: Option<f64>,
    /// Share of drafted tokens that were accepted.
    pub(super) drafts_accepted: Option<f64>,
    /// Share of prompt tokens that were found in the prefix cache.
    pub(super) prefix_cache_hits: Option<f64>,
}

/// Gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Gateway {
    pub(super) address: String,
    pub(super) state: &'static str,
    /// Replies that workers compute for it.
    pub(super) running: Option<u64>,
    /// Responses that stream events.
    pub(super) streams: Option<u64>,
    /// Requests of HTTP.
    pub(super) requests_per_s: Option<f64>,
    /// Responses with a status from 400 on.
    pub(super) refused_per_s: Option<f64>,
    /// Replies that failed.
    pub(super) failed_per_s: Option<f64>,
    /// Replies that were continued after a disconnect.
    pub(super) reattached_per_s: Option<f64>,
    pub(super) first_token_p50_s: Option<f64>,
    pub(super) first_token_p95_s: Option<f64>,
}

/// Returns the time of now in RFC 3339, to the second.
pub(super) fn time() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
