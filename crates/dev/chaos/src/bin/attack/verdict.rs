//! Result of a run: measurements and violations.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

/// Maximum ratio of the neighbor's time to first token under attack to that alone, at the 95th
/// percentile.
const MOST_SLOWER: f64 = 3.0;

/// Time to first token, in seconds, that is accepted whatever the ratio: the cost of one engine
/// step on a busy machine.
const ALWAYS_FINE: f64 = 0.25;

/// Maximum memory of a worker, in MiB: 64 sealed requests of 8 MiB that wait, their copies during
/// decryption, the model, and its KV cache.
const MOST_MIB: u64 = 1024;

/// Maximum number of violations kept with their text; further ones are only counted.
const MOST_WORDS: usize = 40;

/// Result of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    seed: u64,
    seconds: u64,
    #[serde(flatten)]
    state: Mutex<State>,
}

#[derive(Debug, Default, Serialize)]
struct State {
    /// Number of attacks, by attack and outcome.
    attacks: BTreeMap<String, BTreeMap<String, u64>>,
    /// Longest time until an attack ended, in seconds, by attack.
    longest_s: BTreeMap<String, f64>,
    /// Peak resident memory of the processes, in MiB.
    peak_mib: BTreeMap<String, u64>,
    #[serde(skip)]
    alone: Vec<f64>,
    #[serde(skip)]
    beside: Vec<f64>,
    neighbor: Neighbor,
    failures: Vec<String>,
    failed: u64,
}

/// Time to first token of the neighbor, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Neighbor {
    requests: usize,
    alone_p50_s: f64,
    alone_p95_s: f64,
    alone_most_s: f64,
    attacked_p50_s: f64,
    attacked_p95_s: f64,
    attacked_most_s: f64,
}

impl Neighbor {
    /// Returns both times, alone and under attack, with their ratios.
    fn line(&self) -> String {
        let Self { requests, alone_p95_s, alone_most_s, attacked_p95_s, attacked_most_s, .. } =
            self;
        let ratio = |attacked: f64, alone: f64| attacked / alone.max(1e-9);
        format!(
            "neighbor: {requests} requests, first token p95 {alone_p95_s:.3} s alone, \
             {attacked_p95_s:.3} s attacked ({:.1} times), slowest {alone_most_s:.3} s alone, \
             {attacked_most_s:.3} s attacked ({:.1} times)",
            ratio(*attacked_p95_s, *alone_p95_s),
            ratio(*attacked_most_s, *alone_most_s),
        )
    }
}

impl Verdict {
    pub(crate) fn new(seed: u64, seconds: u64) -> Self {
        Self { seed, seconds, state: Mutex::default() }
    }

    /// Records an attack with its outcome and duration.
    pub(crate) fn made(&self, attack: &str, ended: &str, took: Duration) {
        let mut state = self.state();
        let ends = state.attacks.entry(attack.to_owned()).or_default();
        *ends.entry(ended.to_owned()).or_default() += 1;
        let longest = state.longest_s.entry(attack.to_owned()).or_default();
        *longest = longest.max(took.as_secs_f64());
    }

    /// Records a violation.
    pub(crate) fn fails(&self, what: &str) {
        let mut state = self.state();
        state.failed += 1;
        if state.failures.len() < MOST_WORDS {
            eprintln!("FAILED: {what}");
            state.failures.push(what.to_owned());
        }
    }

    /// Records the peak memory of a process.
    pub(crate) fn memory(&self, process: &str, mib: u64) {
        let mut state = self.state();
        let peak = state.peak_mib.entry(process.to_owned()).or_default();
        *peak = mib.max(*peak);
    }

    /// Records a time to first token of the neighbor.
    pub(crate) fn first_token(&self, attacked: bool, took: Duration) {
        let mut state = self.state();
        let times = if attacked { &mut state.beside } else { &mut state.alone };
        times.push(took.as_secs_f64());
    }

    /// Checks a worker's log for panics, aborts and input text.
    pub(crate) fn log(&self, words: &str) {
        for wrong in [
            "panicked at",
            // The worker's own panic hook, which leaves the message out.
            "a thread panicked",
            "stack overflow",
            "SECRET",
            "memory allocation of",
        ] {
            if let Some(line) = words.lines().find(|line| line.contains(wrong)) {
                self.fails(&format!("a worker's log says `{wrong}`: {line}"));
            }
        }
    }

    /// Returns true if no check failed.
    pub(crate) fn holds(&self) -> bool {
        self.state().failed == 0
    }

    /// Checks the limits and prints the result.
    pub(crate) fn print(&self) {
        self.judge();
        let state = self.state();
        println!("{:28} {:>7} {:>9}  ends", "attack", "made", "longest");
        for (attack, ends) in &state.attacks {
            let made: u64 = ends.values().sum();
            let longest = state.longest_s.get(attack).copied().unwrap_or_default();
            let ends: Vec<_> = ends.iter().map(|(end, n)| format!("{end} {n}")).collect();
            println!("{attack:28} {made:>7} {longest:>7.2} s  {}", ends.join(", "));
        }
        for (process, mib) in &state.peak_mib {
            println!("{process}: {mib} MiB at most");
        }
        println!("{}", state.neighbor.line());
        match state.failed {
            0 => println!("0 deaths, every promise was kept"),
            failed => println!("{failed} promises were broken"),
        }
    }

    fn judge(&self) {
        let (neighbor, peaks) = {
            let mut state = self.state();
            let (mut alone, mut beside) = (state.alone.clone(), state.beside.clone());
            alone.sort_by(f64::total_cmp);
            beside.sort_by(f64::total_cmp);
            state.neighbor = Neighbor {
                requests: alone.len() + beside.len(),
                alone_p50_s: percentile(&alone, 0.5),
                alone_p95_s: percentile(&alone, 0.95),
                alone_most_s: percentile(&alone, 1.0),
                attacked_p50_s: percentile(&beside, 0.5),
                attacked_p95_s: percentile(&beside, 0.95),
                attacked_most_s: percentile(&beside, 1.0),
            };
            (state.neighbor, state.peak_mib.clone())
        };
        let allowed = (MOST_SLOWER * neighbor.alone_p95_s).max(ALWAYS_FINE);
        if neighbor.attacked_p95_s > allowed {
            let (had, alone) = (neighbor.attacked_p95_s, neighbor.alone_p95_s);
            self.fails(&format!(
                "the neighbor's first token took {had:.3} s (p95), {alone:.3} s alone; {allowed:.3} s are allowed"
            ));
        }
        for (process, mib) in peaks.into_iter().filter(|(_, mib)| *mib > MOST_MIB) {
            self.fails(&format!("{process} held {mib} MiB, {MOST_MIB} are allowed"));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn percentile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Verdict;

    #[track_caller]
    fn check(alone_ms: u64, attacked_ms: u64, holds: bool) {
        let verdict = Verdict::new(1, 60);
        for (attacked, ms) in [(false, alone_ms), (true, attacked_ms)] {
            verdict.first_token(attacked, Duration::from_millis(ms));
        }
        verdict.judge();
        assert_eq!(verdict.holds(), holds, "{alone_ms} ms alone, {attacked_ms} ms attacked");
    }

    #[test]
    fn a_neighbor_may_wait_three_times_as_long_and_a_quarter_of_a_second_in_any_case() {
        check(100, 299, true);
        check(100, 301, false);
        check(10, 249, true);
        check(10, 251, false);
    }

    #[test]
    fn the_slowest_first_tokens_alone_and_attacked_are_told_together() {
        let verdict = Verdict::new(1, 60);
        for (attacked, ms) in [(false, 100), (false, 200), (true, 300), (true, 500)] {
            verdict.first_token(attacked, Duration::from_millis(ms));
        }
        verdict.judge();
        let line = verdict.state().neighbor.line();
        assert!(line.ends_with("slowest 0.200 s alone, 0.500 s attacked (2.5 times)"), "{line}");
    }

    #[test]
    fn a_panic_in_a_workers_log_is_found() {
        let log = |line: &str| {
            let verdict = Verdict::new(1, 60);
            verdict.log(line);
            verdict.holds()
        };
        assert!(log("INFO taking requests"));
        assert!(!log("thread 'main' panicked at src/main.rs:1:1"));
        assert!(!log("ERROR a thread panicked; what it said is not kept thread=\"nsbridge\""));
    }
}
