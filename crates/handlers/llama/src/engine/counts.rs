//! Engine counters and gauges for the worker's metrics.

use std::time::Duration;

use nsbridge_handler::Measure;
use parking_lot::Mutex;

use crate::speculation::LONGEST;

/// Shared counters, written by the engine thread and read by others.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<Counted>);

/// Counters since the start of the engine, and gauges of its present load.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    pub(crate) steps: u64,
    /// Tokens run, of prompts and replies.
    pub(crate) tokens: u64,
    /// Time spent in the model, in drafting, and in scheduling.
    pub(crate) model_time: Duration,
    pub(crate) draft_time: Duration,
    pub(crate) schedule_time: Duration,
    /// Preemptions: requests or single replies whose memory or place went to others.
    pub(crate) preemptions: u64,
    /// Prompt tokens found in the prefix cache, and those computed.
    pub(crate) cache_hits: u64,
    pub(crate) cache_misses: u64,
    /// Cached blocks that were evicted for want of memory.
    pub(crate) evictions: u64,
    /// Requests that have KV-cache blocks, and requests without.
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    /// KV-cache blocks held by requests, and in total.
    pub(crate) blocks_held: usize,
    pub(crate) blocks: usize,
    /// Maximum number of tokens of a draft; 0 without a drafter.
    pub(crate) longest_draft: usize,
    /// True while there is a drafter that has not failed.
    pub(crate) drafting: bool,
    /// Drafted tokens by position in the draft, from the first position on.
    pub(crate) drafted: [u64; LONGEST],
    /// Accepted tokens by position in the draft.
    pub(crate) accepted: [u64; LONGEST],
}

impl Counts {
    pub(crate) fn read(&self) -> Counted {
        self.0.lock().clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Counted)) {
        change(&mut self.0.lock());
    }
}

impl Counted {
    /// Returns the counters and gauges as metrics of the worker.
    pub(crate) fn measures(&self) -> Vec<Measure> {
        let counter = Measure::counter;
        let gauge = |name, help, value: usize| Measure::gauge(name, help, value as f64);
        let mut measures = vec![
            counter("engine_steps", "Steps of the engine", self.steps as f64),
            counter(
                "engine_tokens",
                "Tokens that were run, of prompts and replies",
                self.tokens as f64,
            ),
            counter(
                "engine_model_seconds",
                "Time in the model, in seconds",
                self.model_time.as_secs_f64(),
            ),
            counter(
                "engine_schedule_seconds",
                "Time between the steps of the model while there was something to run, in seconds",
                self.schedule_time.as_secs_f64(),
            ),
            counter(
                "preemptions",
                "Requests that gave their memory or their place to others, to go on later",
                self.preemptions as f64,
            ),
            counter(
                "prefix_cache_hits",
                "Tokens of prompts that were found in the cache",
                self.cache_hits as f64,
            ),
            counter(
                "prefix_cache_misses",
                "Tokens of prompts that had to be computed",
                self.cache_misses as f64,
            ),
            counter(
                "prefix_cache_evictions",
                "Blocks of 32 tokens that were forgotten for want of room",
                self.evictions as f64,
            ),
            gauge("engine_running", "Requests in the engine with a place", self.running),
            gauge("engine_waiting", "Requests in the engine that wait for a place", self.waiting),
            gauge(
                "kv_blocks_held",
                "Blocks of 32 tokens' keys and values that requests hold",
                self.blocks_held,
            ),
            gauge("kv_blocks", "Blocks of 32 tokens' keys and values", self.blocks),
        ];
        if self.longest_draft > 0 {
            self.add_speculation(&mut measures);
        }
        measures
    }

    fn add_speculation(&self, measures: &mut Vec<Measure>) {
        let (drafted, accepted): (u64, u64) =
            (self.drafted.iter().sum(), self.accepted.iter().sum());
        let help = "Whether replies are drafted: 0 if the drafter has failed";
        let drafting = f64::from(u8::from(self.drafting));
        measures.push(Measure::gauge("speculation_drafting", help, drafting));
        let help = "Time in drafting, in seconds";
        let seconds = self.draft_time.as_secs_f64();
        measures.push(Measure::counter("speculation_draft_seconds", help, seconds));
        let counts = [
            ("speculation_drafted_tokens", "Tokens that were guessed ahead", drafted),
            ("speculation_accepted_tokens", "Guessed tokens that were the reply's", accepted),
            (
                "speculation_wasted_tokens",
                "Guessed tokens that were run for nothing",
                drafted - accepted,
            ),
        ];
        let counter = |(name, help, count)| Measure::counter(name, help, count as f64);
        measures.extend(counts.map(counter));
        let places = [
            (
                "speculation_drafted_at",
                "Tokens that were guessed at this place of a draft",
                self.drafted,
            ),
            (
                "speculation_accepted_at",
                "Tokens that were guessed at this place of a draft, and were the reply's",
                self.accepted,
            ),
        ];
        for (name, help, counts) in places {
            let at = |(place, count)| counter((name, help, count)).of("position", place);
            measures.extend((1..).zip(counts).take(self.longest_draft).map(at));
        }
    }
}
