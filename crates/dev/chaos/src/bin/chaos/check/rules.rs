//! Checks of a round as a whole.

use std::collections::{BTreeMap, BTreeSet};

use nsbridge_protocol::Priority;

use crate::clock::{SECOND, seconds};
use crate::follow::WaitingAlone;
use crate::journal::{Line, What};
use crate::plan::{Expect, Plan};
use crate::stage::{TERMINATE, base};

use super::Report;
use super::copies::Copies;
use super::replies::{End, Replies};
use super::runs::Runs;

/// Time for which a run may continue after its client has died. The reply queue outlives the client
/// by 15 s, and a worker takes the queue for gone after two misses that are 2 s apart; the rest is
/// for slow machines.
const ABANDONED: u64 = 25 * SECOND;

pub(super) fn check(
    plan: &Plan,
    lines: &[Line],
    replies: &Replies,
    runs: &Runs,
    report: &mut Report,
) {
    check_end(lines, report);
    check_reach(plan, lines, runs, report);
    check_dead_letters(plan, lines, report);
    check_stops(plan, lines, replies, runs, report);
    check_prompt(plan, replies, report);
    check_leaving(lines, report);
}

fn check_end(lines: &[Line], report: &mut Report) {
    for line in lines {
        if let What::Broken { why } = &line.what {
            report.broken.push(why.clone());
        }
    }
    if !lines.iter().any(|line| matches!(line.what, What::Over)) {
        report.broken.push("the round did not come to its end".to_owned());
    }
}

/// Checks that clients enqueued enough requests again.
pub(super) fn check_copies(plan: &Plan, copies: &Copies, report: &mut Report) {
    let (again, meant) = (copies.asked_again(), plan.rules.asked_again);
    if again < meant {
        report.broken.push(format!("{again} requests were enqueued anew, not {meant}"));
    }
}

/// Checks that the faults had the effect that the plan expects.
fn check_reach(plan: &Plan, lines: &[Line], runs: &Runs, report: &mut Report) {
    let mut begun: BTreeMap<usize, usize> = BTreeMap::new();
    for run in &runs.all {
        *begun.entry(run.n).or_default() += 1;
    }
    let mut streams: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in lines {
        if let What::Frame { request, stream, .. } = &line.what {
            streams.entry(request).or_default().insert(stream);
        }
    }
    let request = |n: usize| runs.all.iter().find(|run| run.n == n).map(|run| &*run.run.request);
    let streams_of =
        |n| request(n).and_then(|request| streams.get(request)).map_or(0, BTreeSet::len);
    let numbers = 0..plan.asks.len();
    let again = |n: &usize| begun.get(n).is_some_and(|runs| *runs > 1) || streams_of(*n) > 1;
    let taken_up = numbers.filter(again).count();
    if taken_up < plan.rules.taken_up {
        let meant = plan.rules.taken_up;
        report.broken.push(format!("{taken_up} requests were taken up again, not {meant}"));
    }
    if report.resumed < plan.rules.resumed {
        let meant = plan.rules.resumed;
        report.broken.push(format!("{} runs were resumed, not {meant}", report.resumed));
    }
    let (waiting, meant) = (died_waiting(lines), plan.rules.died_waiting);
    if waiting < meant {
        let what = format!("{waiting} times a worker died with what waited, not {meant}");
        report.broken.push(what);
    }
    let lone = runs.all.iter().filter(|run| run.without_client).count();
    if lone < plan.rules.without_client {
        let meant = plan.rules.without_client;
        report.broken.push(format!("{lone} runs were without a client, not {meant}"));
    }
    let meant = plan.rules.stalled_ms as f64 / 1000.0;
    if report.worst < meant {
        report
            .broken
            .push(format!("no caller waited longer than {:.2} s, not {meant:.2} s", report.worst));
    }
    for (n, count) in begun {
        let most = plan.asks.get(n).and_then(|ask| ask.most_runs);
        let most = if plan.rules.one_run_each { 1 } else { most.unwrap_or(usize::MAX) };
        if count > most {
            report.broken.push(format!("request {n} ran {count} times, not {most} at most"));
        }
    }
}

/// Counts the processes that ended while a request in them waited to run alone.
fn died_waiting(lines: &[Line]) -> usize {
    let (mut waiting, mut died) = (WaitingAlone::default(), 0);
    for line in lines {
        died += usize::from(waiting.follow(&line.what));
    }
    died
}

/// Checks that each worker that received SIGTERM exited with status 0.
fn check_leaving(lines: &[Line], report: &mut Report) {
    for (i, line) in lines.iter().enumerate() {
        let What::Fault { fault, on } = &line.what else { continue };
        if fault != TERMINATE {
            continue;
        }
        let end = lines[i..].iter().find_map(|line| match &line.what {
            What::Gone { name, status, .. } if base(name) == on => Some((name, status)),
            _ => None,
        });
        match end {
            Some((_, status)) if status == "exit status: 0" => {}
            Some((name, status)) => {
                report.broken.push(format!("{name} was told to leave, and ended with {status}"));
            }
            None => report.broken.push(format!("{on} was told to leave, and did not")),
        }
    }
}

fn check_dead_letters(plan: &Plan, lines: &[Line], report: &mut Report) {
    let found: Vec<&str> = lines
        .iter()
        .filter_map(|line| match &line.what {
            What::Dead { reason, .. } => Some(&**reason),
            _ => None,
        })
        .collect();
    let meant = match &plan.rules.dead {
        Some((count, reason)) => vec![&**reason; *count],
        None => Vec::new(),
    };
    if found != meant {
        report.broken.push(format!("the dead letters are {found:?}, not {meant:?}"));
    }
}

/// Checks that abandoned and canceled runs stop in time.
fn check_stops(plan: &Plan, lines: &[Line], replies: &Replies, runs: &Runs, report: &mut Report) {
    let abandoned = abandoned(lines, replies);
    for run in &runs.all {
        let Some(ask) = plan.asks.get(run.n) else { continue };
        let reply = replies.get(&run.run.request);
        let cancelled = reply.and_then(|reply| reply.end.as_ref());
        let cancelled = cancelled.filter(|(_, end)| *end == End::Cancelled).map(|(at, _)| *at);
        let due = reply.and_then(|reply| Some(reply.asked? + ask.timeout_ms * SECOND / 1000));
        let gone = abandoned.get(&*run.run.request).copied();
        let (since, limit) = match (&ask.expect, cancelled.or(due), gone) {
            (Expect::Cancelled(ms) | Expect::Deadline(ms), Some(at), _) => (at, ms * SECOND / 1000),
            (Expect::Abandoned(ms), _, Some(at)) => (at, ms * SECOND / 1000),
            (_, _, Some(at)) => (at, ABANDONED),
            _ => continue,
        };
        if !matches!(ask.expect, Expect::Text) {
            report.worst = report.worst.max(seconds(since, run.end));
        }
        if run.end > since + limit {
            let late = seconds(since, run.end);
            let what = format!("request {} ran on for {late:.2} s after its caller left", run.n);
            report.broken.push(what);
        }
    }
}

/// Checks that interactive requests got their first piece in time.
fn check_prompt(plan: &Plan, replies: &Replies, report: &mut Report) {
    let Some(most) = plan.rules.prompt_ms else { return };
    let interactive = plan.asks.iter().filter(|ask| ask.priority == Priority::Interactive);
    for reply in interactive.filter_map(|ask| replies.to(ask.order.n).next()) {
        let (Some(asked), Some(first)) = (reply.asked, reply.came.first()) else { continue };
        let (took, most) = (seconds(asked, *first), most as f64 / 1000.0);
        if took > most {
            let what = format!(
                "request {} waited {took:.2} s for its first piece, not {most:.2} s at most",
                reply.n
            );
            report.broken.push(what);
        }
    }
}

/// Returns the time at which the client of each unfinished request died.
fn abandoned<'a>(lines: &'a [Line], replies: &Replies) -> BTreeMap<&'a str, u64> {
    let (mut left, mut asked): (BTreeMap<&str, u64>, BTreeSet<&str>) = Default::default();
    let mut client = None;
    for line in lines {
        match &line.what {
            What::Client { pid, .. } => client = Some(*pid),
            What::Asked { request, .. } => {
                asked.insert(request);
            }
            What::Gone { pid, .. } if client == Some(*pid) => {
                let unfinished =
                    |request: &&str| replies.get(request).is_none_or(|reply| reply.end.is_none());
                let those = std::mem::take(&mut asked);
                left.extend(those.into_iter().filter(unfinished).map(|request| (request, line.at)));
            }
            _ => {}
        }
    }
    left
}
