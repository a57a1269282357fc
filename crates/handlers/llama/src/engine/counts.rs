//! Engine counters and gauges for the worker's metrics.

use std::time::Duration;

use nsbridge_handler::Measure;
use parking_lot::Mutex;

use crate::speculation::MAX_DRAFT_TOKENS;

/// Shared counters, written by the engine thread and read by others.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<Counted>);

/// Counters since the start of the engine, and gauges of its present load.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    pub(crate) steps: u64,
    /// Tokens computed, of prompts and replies.
    pub(crate) tokens: u64,
    /// Time spent in the model, in drafting, and in scheduling.
    pub(crate) model_time: Duration,
    pub(crate) draft_time: Duration,
    pub(crate) schedule_time: Duration,
    /// Preemptions: requests or single replies whose memory or slot went to others.
    pub(crate) preemptions: u64,
    /// Prompt tokens found in the prefix cache, and those computed.
    pub(crate) cache_hits: u64,
    pub(crate) cache_misses: u64,
    /// Cached blocks that were evicted for lack of memory.
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
    pub(crate) drafted: [u64; MAX_DRAFT_TOKENS],
    /// Accepted tokens by position in the draft.
    pub(crate) accepted: [u64; MAX_DRAFT_TOKENS],
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
                "Tokens that were computed, of prompts and replies",
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
                "Requests and replies that freed their memory or slot for others, to continue later",
                self.preemptions as f64,
            ),
            counter(
                "prefix_cache_hits",
                "Prompt tokens that were found in the prefix cache",
                self.cache_hits as f64,
            ),
            counter(
                "prefix_cache_misses",
                "Prompt tokens that had to be computed",
                self.cache_misses as f64,
            ),
            counter(
                "prefix_cache_evictions",
                "Blocks of 32 tokens that were evicted for lack of memory",
                self.evictions as f64,
            ),
            gauge("engine_running", "Requests that hold KV cache", self.running),
            gauge(
                "engine_waiting",
                "Requests that hold no KV cache: waiting or preempted",
                self.waiting,
            ),
            gauge(
                "kv_blocks_held",
                "KV cache blocks of 32 tokens that requests hold",
                self.blocks_held,
            ),
            gauge("kv_blocks", "KV cache blocks of 32 tokens", self.blocks),
        ];
        if self.longest_draft > 0 {
            self.add_speculation(&mut measures);
        }
        measures
    }

    fn add_speculation(&self, measures: &mut Vec<Measure>) {
        let (drafted, accepted): (u64, u64) =
            (self.drafted.iter().sum(), self.accepted.iter().sum());
        let help = "1 while replies are drafted, 0 if the drafter has failed";
        let drafting = f64::from(u8::from(self.drafting));
        measures.push(Measure::gauge("speculation_drafting", help, drafting));
        let help = "Time spent drafting, in seconds";
        let seconds = self.draft_time.as_secs_f64();
        measures.push(Measure::counter("speculation_draft_seconds", help, seconds));
        let counts = [
            ("speculation_drafted_tokens", "Drafted tokens", drafted),
            ("speculation_accepted_tokens", "Drafted tokens that were accepted", accepted),
            (
                "speculation_wasted_tokens",
                "Drafted tokens that were not accepted",
                drafted - accepted,
            ),
        ];
        let counter = |(name, help, count)| Measure::counter(name, help, count as f64);
        measures.extend(counts.map(counter));
        let positions = [
            ("speculation_drafted_at", "Tokens drafted at this position of a draft", self.drafted),
            (
                "speculation_accepted_at",
                "Tokens drafted at this position of a draft that were accepted",
                self.accepted,
            ),
        ];
        for (name, help, counts) in positions {
            let at = |(position, count)| counter((name, help, count)).of("position", position);
            measures.extend((1..).zip(counts).take(self.longest_draft).map(at));
        }
    }
}
