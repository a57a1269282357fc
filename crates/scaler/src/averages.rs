//! Tokens of a reply, and tokens per second of a busy worker, from readings of workers.

use nsbridge_observe::{Count, Worker};

/// Number of replies, or of readings, after which an average has forgotten two thirds of what was before.
const MEMORY: f64 = 50.0;

/// Least number of readings of busy workers, below which there is no average.
const LEAST_READINGS: f64 = 3.0;

/// Moving average whose first values count alike.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    value: f64,
    /// Weight of what was added.
    weight: f64,
}

impl Average {
    /// Adds the mean of a number of values.
    fn add(&mut self, mean: f64, count: f64) {
        let share = (count / (self.weight + count)).max(1.0 - (-count / MEMORY).exp());
        self.value += (mean - self.value) * share;
        self.weight += count;
    }

    fn after(self, least: f64) -> Option<f64> {
        (self.weight >= least && self.value > 0.0).then_some(self.value)
    }
}

/// Averages over the workers of a model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Averages {
    reply_tokens: Average,
    worker_tokens_per_s: Average,
}

impl Averages {
    /// Adds two readings of a worker, which are this time apart.
    pub(crate) fn add(&mut self, before: &Worker, now: &Worker, seconds: f64) {
        let grown = match now.counters.went_down(&before.counters) {
            true => now.counters.clone(),
            false => now.counters.growth(&before.counters),
        };
        let of = |count| grown.of(count).unwrap_or_default();
        let (tokens, replies) = (of(Count::Output), of(Count::Replies));
        if replies > 0.0 && tokens > 0.0 {
            self.reply_tokens.add(tokens / replies, replies);
        }
        if seconds > 0.0 && is_full(before) && is_full(now) {
            self.worker_tokens_per_s.add(now.tokens_since(before) / seconds, 1.0);
        }
    }

    /// Tokens of a reply, if a worker has told them.
    pub(crate) fn tokens_per_request(&self) -> Option<f64> {
        self.reply_tokens.after(1.0)
    }

    /// Tokens per second of a worker whose places are all busy, if it was measured.
    pub(crate) fn worker_tokens_per_s(&self) -> Option<f64> {
        self.worker_tokens_per_s.after(LEAST_READINGS)
    }
}

/// Returns true if all places of a worker are busy, and nothing but its work holds it up.
fn is_full(worker: &Worker) -> bool {
    let has_free = worker.running + worker.left_over < worker.slots;
    worker.slots > 0.0 && worker.left_over < worker.slots && !has_free && !worker.blocked
}

#[cfg(test)]
mod tests {
    //! Tests of the averages, with pages as workers write them.

    use nsbridge_observe::{Page, Worker};

    use super::Averages;

    fn worker(running: u32, replies: u32, tokens: u32, in_flight: u32) -> Worker {
        let text = format!(
            "nsbridge_slots{{model=\"m\"}} 8\nnsbridge_requests_in_flight {running}\n\
             nsbridge_token_usage_count{{type=\"output\"}} {replies}\n\
             nsbridge_token_usage_sum{{type=\"output\"}} {tokens}\n\
             nsbridge_tokens_in_flight {in_flight}\n"
        );
        let Page::Worker(worker) = Page::read(&text).unwrap() else { panic!() };
        worker
    }

    #[test]
    fn replies_count_by_their_number_and_speeds_of_full_workers_alone() {
        let mut averages = Averages::default();
        let (first, second) = (worker(8, 10, 1000, 0), worker(8, 14, 1800, 800));
        assert_eq!(averages.tokens_per_request(), None);
        averages.add(&first, &second, 10.0);
        assert_eq!(averages.tokens_per_request(), Some(200.0));
        assert_eq!(averages.worker_tokens_per_s(), None, "one reading may be by chance");
        averages.add(&first, &second, 10.0);
        averages.add(&first, &second, 10.0);
        assert_eq!(averages.worker_tokens_per_s(), Some(160.0));
        averages.add(&worker(7, 10, 1000, 0), &worker(8, 10, 1000, 1), 10.0);
        assert_eq!(averages.worker_tokens_per_s(), Some(160.0), "a place was free");
    }

    #[test]
    fn a_restarted_worker_and_an_idle_one_change_nothing_but_by_their_replies() {
        let mut averages = Averages::default();
        averages.add(&worker(0, 10, 1000, 0), &worker(0, 10, 1000, 0), 10.0);
        assert_eq!(averages.tokens_per_request(), None);
        averages.add(&worker(0, 10, 1000, 0), &worker(0, 2, 100, 0), 10.0);
        assert_eq!(averages.tokens_per_request(), Some(50.0));
    }

    #[test]
    fn an_average_follows_its_values() {
        let mut averages = Averages::default();
        let pair = |tokens: u32| (worker(0, 0, 0, 0), worker(0, 25, 25 * tokens, 0));
        for tokens in [100, 300] {
            let (before, now) = pair(tokens);
            averages.add(&before, &now, 10.0);
        }
        assert_eq!(averages.tokens_per_request(), Some(200.0), "the first values count alike");
        for _ in 0..20 {
            let (before, now) = pair(400);
            averages.add(&before, &now, 10.0);
        }
        assert!(averages.tokens_per_request().unwrap() > 399.0);
    }
}
