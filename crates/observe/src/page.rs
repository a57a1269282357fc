//! Readings of the metrics pages of workers and gateways.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use hyper::StatusCode;
use nsbridge_protocol::ErrorCode;

use super::buckets::{Buckets, growth};
use super::exposition::{Sample, is_whole, samples};
use super::http::Answer;

/// Counter of a page, or the sum of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Count {
    /// Requests that ended here; requests of HTTP at a gateway.
    Requests,
    /// Requests that ended with an error; refused ones at a gateway.
    Errors,
    /// Tokens of replies that ended.
    Output,
    /// Replies whose tokens are in [`Output`](Self::Output).
    Replies,
    /// Pieces of earlier attempts that replies went on after.
    Resumed,
    /// Drafted tokens.
    Drafted,
    /// Drafted tokens that were accepted.
    Accepted,
    /// Prompt tokens that were found in the prefix cache.
    CacheHits,
    /// Prompt tokens that were computed.
    CacheMisses,
    /// Replies of a gateway that failed.
    Failed,
    /// Replies of a gateway that were continued.
    Reattached,
}

/// Counters of a page, and the histogram of the time to the first token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    counts: BTreeMap<Count, f64>,
    /// Times to the first token, in seconds.
    pub first_token: Buckets,
}

impl Counters {
    fn count(&mut self, count: Count, value: f64) {
        *self.counts.entry(count).or_default() += value;
    }

    /// Returns the value of a counter that the page has.
    pub fn of(&self, count: Count) -> Option<f64> {
        self.counts.get(&count).copied()
    }

    /// Returns true if a counter is lower than before, so that the process was restarted.
    pub fn went_down(&self, before: &Self) -> bool {
        self.counts.iter().any(|(count, now)| before.of(*count).is_some_and(|then| *now < then))
    }

    /// Returns the growth of all counters since an earlier reading.
    pub fn growth(&self, before: &Self) -> Self {
        let grown = |(count, now): (&Count, &f64)| {
            (*count, growth(before.of(*count).unwrap_or_default(), *now))
        };
        Self {
            counts: self.counts.iter().map(grown).collect(),
            first_token: self.first_token.growth(&before.first_token),
        }
    }

    /// Adds a bucket of the time to the first token.
    fn bucket(&mut self, sample: &Sample<'_>) {
        if let Some(Ok(bound)) = sample.label("le").map(str::parse) {
            self.first_token.add(bound, sample.value);
        }
    }

    /// Adds the counts of other counters.
    pub fn add_all(&mut self, other: &Self) {
        for (count, value) in &other.counts {
            self.count(*count, *value);
        }
        self.first_token.add_all(&other.first_token);
    }
}

/// Metrics of a worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Worker {
    /// Name of the model.
    pub model: String,
    /// Version of nsbridge.
    pub version: String,
    /// Revision of the model; empty if there is none.
    pub revision: String,
    /// Fingerprint of the handler; empty if there is none.
    pub fingerprint: String,
    /// Maximum number of requests in the worker.
    pub slots: f64,
    /// Requests that hold a slot.
    pub running: f64,
    /// Slots of calls that were given up and have not ended.
    pub left_over: f64,
    /// Pieces of the replies that run.
    pub in_flight: f64,
    /// True while the broker does not read what the worker publishes.
    pub blocked: bool,
    /// True if it can publish no reply.
    pub publish_failing: bool,
    /// True if replies are drafted, false if the drafter has failed; `None` without a drafter.
    pub drafting: Option<bool>,
    /// Messages in the model's queues by `requests`, `bulk` and `dead`, as the worker saw them.
    pub queues: BTreeMap<String, f64>,
    /// Counters.
    pub counters: Counters,
}

impl Worker {
    /// Returns the number of tokens that were made since an earlier reading.
    ///
    /// Tokens of running replies are in a gauge, those of ended ones in a counter. Tokens of replies
    /// that moved or failed leave the gauge and are not counted, which must not make the number
    /// negative.
    pub fn tokens_since(&self, before: &Self) -> f64 {
        let of = |counters: &Counters, count| counters.of(count).unwrap_or_default();
        let made = |worker: &Self| {
            of(&worker.counters, Count::Output) - of(&worker.counters, Count::Resumed)
                + worker.in_flight
        };
        let since = if self.counters.went_down(&before.counters) { 0.0 } else { made(before) };
        (made(self) - since).max(0.0)
    }
}

/// Metrics of a gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gateway {
    /// Replies that workers compute for it.
    pub running: f64,
    /// Responses that stream events.
    pub streams: f64,
    /// Counters.
    pub counters: Counters,
}

/// Metrics of a process.
#[derive(Clone, Debug, PartialEq)]
pub enum Page {
    /// Page of a worker.
    Worker(Worker),
    /// Page of a gateway.
    Gateway(Gateway),
}

impl Page {
    /// Reads the answer of a server: a page of a worker or of a gateway.
    ///
    /// # Errors
    ///
    /// Returns an error if it is not such a page, or a part of one.
    pub fn of_answer(answer: &Answer) -> Result<Self> {
        if answer.status != StatusCode::OK {
            bail!("status {}", answer.status.as_u16());
        }
        let kind = answer.kind.as_ref().and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.starts_with("application/openmetrics-text") && !is_whole(&answer.text) {
            bail!("the page was cut: its last line is not `# EOF`");
        }
        Self::read(&answer.text)
    }

    /// Reads a page of a worker or of a gateway.
    ///
    /// # Errors
    ///
    /// Returns an error if the text has another form, or is the page of another program.
    pub fn read(text: &str) -> Result<Self> {
        let samples = samples(text).collect::<Result<Vec<_>>>()?;
        let has = |start: &str| samples.iter().any(|sample| sample.name.starts_with(start));
        // Values that are no numbers are taken as absent.
        let numbers = samples.iter().filter(|sample| sample.value.is_finite());
        match (has("nsbridge_slots"), has("nsbridge_gateway_")) {
            (true, false) => {
                let mut worker = Worker::default();
                numbers.for_each(|sample| worker.take(sample));
                Ok(Self::Worker(worker))
            }
            (false, true) => {
                let mut gateway = Gateway::default();
                numbers.for_each(|sample| gateway.take(sample));
                Ok(Self::Gateway(gateway))
            }
            _ => bail!("it is not the page of a worker or of a gateway"),
        }
    }
}

impl Worker {
    fn take(&mut self, sample: &Sample<'_>) {
        let value = sample.value;
        let label = |name| sample.label(name).unwrap_or_default().to_owned();
        match sample.name {
            "nsbridge_slots" => {
                self.slots = value;
                self.model = label("model");
            }
            "nsbridge_requests_in_flight" => self.running = value,
            "nsbridge_calls_left_over" => self.left_over = value,
            "nsbridge_tokens_in_flight" => self.in_flight = value,
            "nsbridge_broker_blocked" => self.blocked = value > 0.0,
            "nsbridge_publish_failing" => self.publish_failing = value > 0.0,
            "nsbridge_handler_speculation_drafting" => self.drafting = Some(value > 0.0),
            "nsbridge_worker_info" => {
                self.version = label("version");
                self.revision = label("revision");
                self.fingerprint = label("fingerprint");
            }
            "nsbridge_queue_messages" => {
                // A page has a fixed number of them, and each of these names is short.
                if let queue @ ("requests" | "bulk" | "dead") = &*label("queue") {
                    self.queues.insert(queue.to_owned(), value);
                }
            }
            "nsbridge_token_usage_sum" if sample.label("type") == Some("output") => {
                self.counters.count(Count::Output, value);
            }
            "nsbridge_token_usage_count" if sample.label("type") == Some("output") => {
                self.counters.count(Count::Replies, value);
            }
            "nsbridge_resumed_pieces_total" => self.counters.count(Count::Resumed, value),
            "nsbridge_requests_ended_total" => self.ended(&label("outcome"), value),
            "nsbridge_handler_speculation_drafted_tokens_total" => {
                self.counters.count(Count::Drafted, value);
            }
            "nsbridge_handler_speculation_accepted_tokens_total" => {
                self.counters.count(Count::Accepted, value);
            }
            "nsbridge_handler_prefix_cache_hits_total" => {
                self.counters.count(Count::CacheHits, value);
            }
            "nsbridge_handler_prefix_cache_misses_total" => {
                self.counters.count(Count::CacheMisses, value);
            }
            "gen_ai_server_time_to_first_token_seconds_bucket" => self.counters.bucket(sample),
            _ => {}
        }
    }

    /// Counts requests by their outcome. Those that moved or are retried have not ended, and a
    /// cancel is no error.
    fn ended(&mut self, outcome: &str, value: f64) {
        if matches!(outcome, "moved" | "retried") {
            return;
        }
        self.counters.count(Count::Requests, value);
        let is_error = outcome != "ok" && outcome != ErrorCode::Cancelled.as_str();
        self.counters.count(Count::Errors, if is_error { value } else { 0.0 });
    }
}

impl Gateway {
    fn take(&mut self, sample: &Sample<'_>) {
        let value = sample.value;
        match sample.name {
            "nsbridge_gateway_replies_running" => self.running = value,
            "nsbridge_gateway_streams_open" => self.streams = value,
            "nsbridge_gateway_requests_refused_total" => self.counters.count(Count::Errors, value),
            "nsbridge_gateway_replies_failed_total" => self.counters.count(Count::Failed, value),
            "nsbridge_gateway_replies_reattached_total" => {
                self.counters.count(Count::Reattached, value);
            }
            "http_server_request_duration_seconds_count" => {
                self.counters.count(Count::Requests, value);
            }
            "gen_ai_client_operation_time_to_first_chunk_seconds_bucket" => {
                self.counters.bucket(sample);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Count, Page, Worker};

    fn worker(text: &str) -> Worker {
        let Page::Worker(worker) = Page::read(text).unwrap() else { panic!("a gateway") };
        worker
    }

    const PAGE: &str = "nsbridge_slots{model=\"m\"} 4\n\
        nsbridge_requests_ended_total{outcome=\"ok\"} 7\n\
        nsbridge_requests_ended_total{outcome=\"poison\"} 2\n\
        nsbridge_requests_ended_total{outcome=\"cancelled\"} 3\n\
        nsbridge_requests_ended_total{outcome=\"moved\"} 100\n\
        nsbridge_token_usage_sum{type=\"input\"} 900\n\
        nsbridge_handler_speculation_drafting 0\n\
        nsbridge_queue_messages{queue=\"requests\"} 5\n\
        nsbridge_queue_messages{queue=\"other\"} 6\n\
        nsbridge_requests_in_flight NaN\n";

    #[test]
    fn outcomes_are_summed_and_other_labels_left_out() {
        let worker = worker(PAGE);
        let of = |count| worker.counters.of(count);
        assert_eq!(
            (of(Count::Requests), of(Count::Errors), of(Count::Output)),
            (Some(12.0), Some(2.0), None)
        );
        assert_eq!((worker.drafting, worker.running), (Some(false), 0.0));
        assert_eq!(worker.queues.into_iter().collect::<Vec<_>>(), [("requests".to_owned(), 5.0)]);
    }

    #[test]
    fn the_page_of_another_program_is_refused() {
        for text in ["", "up 1\n", &format!("{PAGE}nsbridge_gateway_streams_open 1\n")] {
            let error = Page::read(text).unwrap_err().to_string();
            assert!(error.contains("not the page of a worker or of a gateway"), "{error}");
        }
        assert!(Page::read("<html>\n").unwrap_err().to_string().contains("its line 1"));
    }

    #[test]
    fn tokens_are_counted_while_replies_run_and_once() {
        let reading = |output: u32, resumed: u32, in_flight: u32| {
            worker(&format!(
                "nsbridge_slots 8\nnsbridge_token_usage_sum{{type=\"output\"}} {output}\n\
                 nsbridge_resumed_pieces_total {resumed}\nnsbridge_tokens_in_flight {in_flight}\n"
            ))
        };
        let first = reading(1000, 10, 50);
        assert_eq!(reading(1000, 10, 90).tokens_since(&first), 40.0, "a reply goes on");
        assert_eq!(reading(1095, 10, 0).tokens_since(&first), 45.0, "it ends after 45 more");
        assert_eq!(reading(1000, 40, 85).tokens_since(&first), 5.0, "30 of 35 were resumed");
        assert_eq!(reading(1000, 10, 0).tokens_since(&first), 0.0, "it failed");
        assert_eq!(reading(20, 0, 7).tokens_since(&first), 27.0, "the worker was restarted");
    }
}
