//! Result of a run: measurements and violations.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

/// Maximum ratio of the neighbor's time to first token under attack to that alone, at the 95th
/// percentile.
pub(crate) const MOST_SLOWER: f64 = 3.0;

/// Time to first token, in seconds, that is accepted whatever the ratio: the cost of one engine
/// step on a busy machine.
const ALWAYS_FINE: f64 = 0.25;

/// Maximum memory of a worker, in MiB: 64 sealed requests of 8 MiB that wait, their copies during
/// decryption, the model, and its KV cache.
const MOST_MIB: u64 = 1024;

/// Maximum memory of the gateway above that of an idle one, in MiB, whatever one tenant sends.
const MOST_ABOVE_IDLE_MIB: u64 = 512;

/// Maximum memory of the gateway above that of an idle one [`GIVEN_BACK_WITHIN`] after the attack, in
/// MiB.
const MOST_KEPT_MIB: u64 = 64;

/// Time in which the gateway gives memory back.
pub(crate) const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(60);

/// Maximum number of violations kept with their text; further ones are only counted.
const MOST_WORDS: usize = 40;

/// Result of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    seed: u64,
    seconds: u64,
    /// Allowed ratio of the neighbor's time to first token.
    most_slower: f64,
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
    gateway: Option<GatewayMemory>,
    #[serde(skip)]
    times: BTreeMap<&'static str, Times>,
    /// Times of the neighbor, by its way to the worker.
    neighbor: BTreeMap<&'static str, Neighbor>,
    failures: Vec<String>,
    failed: u64,
}

/// Resident memory of the gateway, in MiB.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct GatewayMemory {
    pub(crate) idle_mib: u64,
    pub(crate) peak_mib: u64,
    /// At the end of the attack.
    pub(crate) end_mib: u64,
    /// Value at the time when it was given back, or at the end of [`GIVEN_BACK_WITHIN`].
    pub(crate) left_mib: u64,
}

impl GatewayMemory {
    /// Returns true if no more is kept than is allowed.
    pub(crate) fn is_given_back(&self) -> bool {
        self.left_mib <= self.idle_mib + MOST_KEPT_MIB
    }
}

/// Times to first token, in seconds.
#[derive(Clone, Debug, Default)]
struct Times {
    alone: Vec<f64>,
    attacked: Vec<f64>,
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
    fn of(times: Times) -> Self {
        let Times { mut alone, mut attacked } = times;
        alone.sort_by(f64::total_cmp);
        attacked.sort_by(f64::total_cmp);
        Self {
            requests: alone.len() + attacked.len(),
            alone_p50_s: percentile(&alone, 0.5),
            alone_p95_s: percentile(&alone, 0.95),
            alone_most_s: percentile(&alone, 1.0),
            attacked_p50_s: percentile(&attacked, 0.5),
            attacked_p95_s: percentile(&attacked, 0.95),
            attacked_most_s: percentile(&attacked, 1.0),
        }
    }

    /// Returns both times, alone and under attack, with their ratios.
    fn line(&self, door: &str) -> String {
        let Self { requests, alone_p95_s, alone_most_s, attacked_p95_s, attacked_most_s, .. } =
            self;
        let ratio = |attacked: f64, alone: f64| attacked / alone.max(1e-9);
        format!(
            "neighbor at the {door}: {requests} requests, first token p95 {alone_p95_s:.3} s alone, \
             {attacked_p95_s:.3} s attacked ({:.1} times), slowest {alone_most_s:.3} s alone, \
             {attacked_most_s:.3} s attacked ({:.1} times)",
            ratio(*attacked_p95_s, *alone_p95_s),
            ratio(*attacked_most_s, *alone_most_s),
        )
    }
}

impl Verdict {
    pub(crate) fn new(seed: u64, seconds: u64, most_slower: f64) -> Self {
        Self { seed, seconds, most_slower, state: Mutex::default() }
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

    /// Records the memory of the gateway.
    pub(crate) fn gateway(&self, memory: GatewayMemory) {
        self.state().gateway = Some(memory);
    }

    /// Records a time to first token of the neighbor, whose requests take this way.
    pub(crate) fn first_token(&self, door: &'static str, attacked: bool, took: Duration) {
        let mut state = self.state();
        let times = state.times.entry(door).or_default();
        let times = if attacked { &mut times.attacked } else { &mut times.alone };
        times.push(took.as_secs_f64());
    }

    /// Checks a process's log for panics, aborts and input text.
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
                self.fails(&format!("a log says `{wrong}`: {line}"));
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
        if let Some(GatewayMemory { idle_mib, peak_mib, end_mib, left_mib }) = state.gateway {
            println!(
                "gateway: {idle_mib} MiB idle, {peak_mib} at most, {end_mib} at the end, {left_mib} left"
            );
        }
        for (door, neighbor) in &state.neighbor {
            println!("{}", neighbor.line(door));
        }
        match state.failed {
            0 => println!("0 deaths, every promise was kept"),
            failed => println!("{failed} promises were broken"),
        }
    }

    fn judge(&self) {
        let (neighbors, peaks, gateway) = {
            let mut state = self.state();
            let times = state.times.clone();
            state.neighbor =
                times.into_iter().map(|(door, times)| (door, Neighbor::of(times))).collect();
            (state.neighbor.clone(), state.peak_mib.clone(), state.gateway)
        };
        for (door, neighbor) in neighbors {
            let allowed = (self.most_slower * neighbor.alone_p95_s).max(ALWAYS_FINE);
            let (had, alone) = (neighbor.attacked_p95_s, neighbor.alone_p95_s);
            if had > allowed {
                self.fails(&format!(
                    "the first token of the neighbor at the {door} took {had:.3} s (p95), {alone:.3} s alone; {allowed:.3} s are allowed"
                ));
            }
        }
        if let Some(memory) = gateway {
            let GatewayMemory { idle_mib, peak_mib, left_mib, .. } = memory;
            if peak_mib > idle_mib + MOST_ABOVE_IDLE_MIB {
                self.fails(&format!(
                    "the gateway held {peak_mib} MiB, {idle_mib} MiB idle; {MOST_ABOVE_IDLE_MIB} more are allowed"
                ));
            }
            if !memory.is_given_back() {
                let within = GIVEN_BACK_WITHIN.as_secs();
                self.fails(&format!(
                    "the gateway kept {left_mib} MiB {within} s after the attack, {idle_mib} MiB idle; {MOST_KEPT_MIB} more are allowed"
                ));
            }
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

    use super::{GatewayMemory, MOST_SLOWER, Verdict};

    #[track_caller]
    fn check(alone_ms: u64, attacked_ms: u64, holds: bool) {
        let verdict = Verdict::new(1, 60, MOST_SLOWER);
        for (attacked, ms) in [(false, alone_ms), (true, attacked_ms)] {
            verdict.first_token("broker", attacked, Duration::from_millis(ms));
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
        let verdict = Verdict::new(1, 60, MOST_SLOWER);
        for (attacked, ms) in [(false, 100), (false, 200), (true, 300), (true, 500)] {
            verdict.first_token("broker", attacked, Duration::from_millis(ms));
        }
        verdict.judge();
        let line = verdict.state().neighbor["broker"].line("broker");
        assert!(line.ends_with("slowest 0.200 s alone, 0.500 s attacked (2.5 times)"), "{line}");
    }

    #[test]
    fn a_gateway_may_hold_512_mib_and_keep_64() {
        let check = |peak_mib: u64, left_mib: u64| {
            let verdict = Verdict::new(1, 60, MOST_SLOWER);
            let end_mib = peak_mib;
            verdict.gateway(GatewayMemory { idle_mib: 20, peak_mib, end_mib, left_mib });
            verdict.judge();
            verdict.holds()
        };
        assert!(check(532, 84));
        assert!(!check(533, 84) && !check(532, 85));
    }

    #[test]
    fn a_panic_in_a_workers_log_is_found() {
        let log = |line: &str| {
            let verdict = Verdict::new(1, 60, MOST_SLOWER);
            verdict.log(line);
            verdict.holds()
        };
        assert!(log("INFO taking requests"));
        assert!(!log("thread 'main' panicked at src/main.rs:1:1"));
        assert!(!log("ERROR a thread panicked; what it said is not kept thread=\"nsbridge\""));
    }
}
