//! Checks of handler runs: overlaps, and runs after the end of their request.

use std::collections::{BTreeMap, HashMap};

use crate::clock::{SECOND, seconds};
use crate::follow::{client_was_gone, was_canceled};
use crate::journal::{Line, Run, What};
use crate::plan::Plan;

use super::Report;
use super::copies::Copies;
use super::replies::Replies;

/// Time for which a worker that has subscribed again may keep a job that another worker runs.
const ADOPT_WINDOW: u64 = 5 * SECOND;

/// Time for which a worker that cannot subscribe may keep a job.
const ORPHAN: u64 = 60 * SECOND;

/// Tolerance on both limits, for a step of the handler and a slow machine.
const OVERLAP: u64 = 2 * SECOND;

/// Time after the client has received the end in which a run may still begin.
const AFTER_THE_END: u64 = SECOND;

/// Time for which a worker asks the client before it begins a run. It hears no answer if it loses its
/// connection meanwhile.
const ASKING: u64 = 5 * SECOND;

/// Shortest time without any line of the journal in which all processes may have stood still, such as
/// on a machine that other programs use.
const SILENCE: u64 = SECOND / 2;

/// Runs of a round.
#[derive(Debug, Default)]
pub(super) struct Runs {
    pub(super) all: Vec<Interval>,
    /// Times at which each process subscribed.
    taking: HashMap<u32, Vec<u64>>,
    /// Times at which each process lost a subscription.
    not_taking: HashMap<u32, Vec<u64>>,
    /// Times at which a client subscribed to its reply queue (true) or lost the subscription
    /// (false).
    hearing: Vec<(u64, bool)>,
    /// Begins and ends of times in which the journal has no line.
    silences: Vec<(u64, u64)>,
}

/// Run, from its begin to its end or that of its process.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    pub(super) run: Run,
    pub(super) n: usize,
    resumed: usize,
    /// Job key: request and copy. A run without a reader had the bytes of the genuine copy, and
    /// counts as another job in scenarios with forged copies.
    key: String,
    pub(super) without_client: bool,
    canceled: bool,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Runs {
    pub(super) fn of(plan: &Plan, lines: &[Line], copies: &Copies) -> Self {
        let forged = plan.rules.without_client > 0;
        let (mut runs, mut open) = (Self::default(), HashMap::<Run, Interval>::new());
        let mut times: Vec<u64> = lines.iter().map(|line| line.at).collect();
        times.sort_unstable();
        let gaps = times.windows(2).map(|two| (two[0], two[1]));
        runs.silences = gaps.filter(|(from, to)| to - from >= SILENCE).collect();
        let last = lines.last().map_or(0, |line| line.at);
        let over = lines.iter().find(|line| matches!(line.what, What::Over));
        let over = over.map_or(last, |line| line.at);
        for Line { at, what } in lines {
            match what {
                What::Taking { pid } => runs.taking.entry(*pid).or_default().push(*at),
                What::NotTaking { pid } => runs.not_taking.entry(*pid).or_default().push(*at),
                What::Listening { hears, .. } => runs.hearing.push((*at, *hears)),
                What::Start { run, n, resumed } => {
                    let (key, run) = (copies.key(run, *at), run.clone());
                    let (n, resumed, start, end) = (*n, *resumed, *at, over.max(*at));
                    let (without_client, canceled) = (false, false);
                    let begun =
                        Interval { run, n, resumed, key, without_client, canceled, start, end };
                    open.insert(begun.run.clone(), begun);
                }
                What::End { run, how, .. } => {
                    let Some(mut begun) = open.remove(run) else { continue };
                    begun.end = *at;
                    begun.without_client = client_was_gone(how);
                    begun.canceled = was_canceled(how);
                    if forged && begun.without_client {
                        begun.key.push_str(" without a client");
                    }
                    runs.all.push(begun);
                }
                What::Gone { pid, .. } => {
                    let ended = open.extract_if(|run, _| run.pid == *pid);
                    runs.all.extend(ended.map(|(_, begun)| Interval { end: *at, ..begun }));
                }
                _ => {}
            }
        }
        runs.all.extend(open.into_values());
        runs.all.sort_by_key(|interval| interval.start);
        runs
    }

    pub(super) fn resumed(&self) -> usize {
        self.all.iter().filter(|interval| interval.resumed > 0).count()
    }

    pub(super) fn check(&self, plan: &Plan, replies: &Replies, report: &mut Report) {
        if plan.rules.through_gateways {
            return;
        }
        let mut jobs: BTreeMap<&str, Vec<&Interval>> = BTreeMap::new();
        for interval in &self.all {
            jobs.entry(&interval.key).or_default().push(interval);
        }
        for runs in jobs.values() {
            for (i, older) in runs.iter().enumerate() {
                let newer = runs[i + 1..].iter();
                let doubles = newer.filter_map(|newer| self.doubles(older, newer, plan));
                report.double_runs.extend(doubles);
            }
        }
        // A worker asks the client for a few seconds before it begins.
        for Interval { run, n, start, canceled, .. } in &self.all {
            let end = replies.get(&run.request).and_then(|reply| reply.end.as_ref());
            let late = |end: u64| {
                let asked_in_vain = self.lost_within(run.pid, start.saturating_sub(ASKING), *start);
                let in_vain = match canceled {
                    true if asked_in_vain => ASKING,
                    true => self.silent(end, *start),
                    false => 0,
                };
                *start > end + AFTER_THE_END + in_vain && !self.deaf(*start)
            };
            if let Some((end, _)) = end.filter(|(end, _)| late(*end)) {
                let late = seconds(*end, *start);
                let worker = &run.worker;
                let what = format!("request {n} began in {worker} {late:.1} s after its end");
                report.double_runs.push(what);
            }
        }
    }

    /// Returns true if the client was not subscribed at this time, so that no worker could learn of
    /// the end. The client has a second to answer after it has subscribed again.
    fn deaf(&self, at: u64) -> bool {
        let before = self.hearing.iter().rev().find(|(changed, _)| *changed <= at);
        before.is_some_and(|(changed, hears)| !hears || at <= changed + AFTER_THE_END)
    }

    /// Returns true if the process lost a subscription between these times.
    fn lost_within(&self, pid: u32, from: u64, to: u64) -> bool {
        let lost = self.not_taking.get(&pid).into_iter().flatten();
        lost.into_iter().any(|at| (from..=to).contains(at))
    }

    /// Returns the time between two moments in which the journal has no line.
    fn silent(&self, from: u64, to: u64) -> u64 {
        let within = |(begin, end): &(u64, u64)| to.min(*end).saturating_sub(from.max(*begin));
        self.silences.iter().map(within).sum()
    }

    /// Describes the overlap of two runs of one job, if it is not allowed.
    fn doubles(&self, older: &Interval, newer: &Interval, plan: &Plan) -> Option<String> {
        let until = older.end.min(newer.end);
        if newer.start >= until {
            return None;
        }
        let (a, b) = (&older.run, &newer.run);
        let long = seconds(newer.start, until);
        let what = format!("request {} in {} and {} for {long:.2} s", older.n, a.worker, b.worker);
        if a.pid == b.pid {
            return Some(format!("{what}: one process"));
        }
        let allowed = self.allowed_until(older, newer) + OVERLAP;
        let excess = until > allowed && !plan.rules.published_twice;
        excess.then(|| format!("{what}: {:.2} s too long", seconds(allowed, until)))
    }

    /// Returns the time until which the older run may continue although another worker has its job.
    ///
    /// Its worker lost its connection before the newer run began, and subscribed again after the
    /// older run had begun. A subscription that was lost before the newer run began was not that one: the
    /// older run had its delivery from it, or had adopted it. If the worker loses that connection too
    /// before the adoption window is over, the window starts again with the next subscription.
    fn allowed_until(&self, older: &Interval, newer: &Interval) -> u64 {
        let times = |all: &HashMap<u32, Vec<u64>>| all.get(&older.run.pid).cloned();
        let again = times(&self.taking).unwrap_or_default();
        let lost = times(&self.not_taking).unwrap_or_default();
        let kept = |at: u64| !lost.iter().any(|lost| at < *lost && *lost <= newer.start);
        let mut again = again.iter().filter(|at| **at > older.start && kept(**at));
        let Some(first) = again.next() else { return newer.start + ORPHAN };
        let mut allowed = first + ADOPT_WINDOW;
        for at in again {
            let lost = lost.iter().rev().find(|lost| *lost < at).unwrap_or(at);
            if *lost <= allowed {
                allowed = at + ADOPT_WINDOW;
            }
        }
        allowed.max(newer.start)
    }
}
