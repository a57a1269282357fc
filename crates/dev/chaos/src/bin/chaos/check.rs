//! Checker: reads only the journal and the keyring of a round.
//!
//! Problems that it counts:
//! - *lost*: the caller of a request got neither the whole text of an undisturbed run nor the
//!   outcome that the plan expects instead;
//! - *repeated*: a text differs from that of an undisturbed run, or a caller received a restart
//!   event;
//! - *double run*: two runs of one job key overlap for longer than the protocol allows, or a run
//!   begins after its client has received the end.
//!
//! Every other violation is *broken*: a nonce used for two contents, an unexpected dead letter, a
//! fault without effect.

mod copies;
mod flat;
mod frames;
mod pace;
mod peaks;
mod replies;
mod rules;
mod runs;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::{Context, Result};

use crate::journal::{self, Line, What};
use crate::plan::Plan;

use copies::Copies;
use replies::Replies;
use runs::Runs;

/// Result of a round, or of several rounds of a scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) scenario: String,
    pub(crate) rounds: usize,
    pub(crate) requests: usize,
    pub(crate) faults: usize,
    /// Number of pieces that callers received.
    pub(crate) pieces: usize,
    /// Number of runs that continued after pieces that the client had.
    pub(crate) resumed: usize,
    /// Longest wait of a caller between two pieces, or longest time that a run took to stop, in
    /// seconds.
    pub(crate) worst: f64,
    pub(crate) lost: Vec<String>,
    pub(crate) repeated: Vec<String>,
    pub(crate) double_runs: Vec<String>,
    pub(crate) broken: Vec<String>,
    /// Information for the user that is no problem.
    pub(crate) notes: Vec<String>,
}

impl Report {
    pub(crate) fn is_good(&self) -> bool {
        let Self { lost, repeated, double_runs, broken, .. } = self;
        [lost, repeated, double_runs, broken].iter().all(|problems| problems.is_empty())
    }

    /// Adds another round of the same scenario.
    pub(crate) fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.requests += other.requests;
        self.faults += other.faults;
        self.pieces += other.pieces;
        self.resumed += other.resumed;
        self.worst = self.worst.max(other.worst);
        self.lost.extend(other.lost);
        self.repeated.extend(other.repeated);
        self.double_runs.extend(other.double_runs);
        self.broken.extend(other.broken);
        self.notes.extend(other.notes);
    }
}

/// Reads the round in `dir` and checks it.
pub(crate) fn read(dir: &Path) -> Result<Report> {
    let lines = journal::read(dir)?;
    let copies = Copies::read(dir, &lines)?;
    judge(&lines, &copies)
}

/// Checks a round by its journal.
fn judge(lines: &[Line], copies: &Copies) -> Result<Report> {
    let plan = &seeded(plan(lines).context("the journal has no plan")?, lines);
    let (replies, runs) = (Replies::of(lines), Runs::of(plan, lines, copies));
    let mut report = Report {
        scenario: plan.scenario.clone(),
        rounds: 1,
        requests: plan.asks.len(),
        faults: lines.iter().filter(|line| matches!(line.what, What::Fault { .. })).count(),
        pieces: replies.pieces(),
        resumed: runs.resumed(),
        ..Report::default()
    };
    replies.check(plan, &mut report);
    runs.check(plan, &replies, &mut report);
    frames::check(plan, lines, &mut report);
    rules::check(plan, lines, &replies, &runs, &mut report);
    rules::check_copies(plan, copies, &mut report);
    flat::check(plan, lines, &mut report);
    peaks::check(plan, lines, &mut report);
    pace::check(plan, &replies, &runs, &mut report);
    let place = format!("{}-{}", plan.scenario, plan.round);
    let Report { lost, repeated, double_runs, broken, .. } = &mut report;
    for problem in [lost, repeated, double_runs, broken].into_iter().flatten() {
        *problem = format!("{place}: {problem}");
    }
    Ok(report)
}

/// Returns the plan with the seeds that gateways drew. The seed of a request is that of its first
/// run: all later ones must have it too.
fn seeded(plan: &Plan, lines: &[Line]) -> Plan {
    let mut plan = plan.clone();
    if plan.rules.through_gateways {
        let first = |wanted: &str| {
            lines.iter().find_map(|line| match &line.what {
                What::Seed { request, seed } if request == wanted => Some(*seed),
                _ => None,
            })
        };
        for line in lines {
            let What::Asked { n, request } = &line.what else { continue };
            let Some(ask) = plan.asks.get_mut(*n) else { continue };
            ask.seed = first(request).unwrap_or(ask.seed);
        }
    }
    plan
}

fn plan(lines: &[Line]) -> Option<&Plan> {
    lines.iter().find_map(|line| match &line.what {
        What::Plan(plan) => Some(plan),
        _ => None,
    })
}
