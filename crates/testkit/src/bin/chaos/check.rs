//! The checker: reads the journal of a round, and nothing else but its keyring.
//!
//! What it counts:
//! - *lost*: a request whose caller did not get the whole text of a lone run, nor what its plan
//!   says must happen instead;
//! - *repeated*: a text that differs from the lone run's, or a caller that was told of a restart;
//! - *double run*: two runs of one job key at once for longer than the protocol allows, or a run
//!   that begins after its client has the end.
//!
//! Everything else that must not be is *broken*: a nonce used for two contents, a dead letter that
//! nobody expects, a fault that hit nothing.

mod copies;
mod flat;
mod frames;
mod pace;
mod replies;
mod rules;
mod runs;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::{Context, Result};

use crate::journal::{self, Line, What};
use crate::plan::Plan;

pub(crate) use copies::KEYRING;

use copies::Copies;
use replies::Replies;
use runs::Runs;

/// What a round came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) scenario: String,
    pub(crate) rounds: usize,
    pub(crate) requests: usize,
    pub(crate) faults: usize,
    /// That callers were given.
    pub(crate) pieces: usize,
    /// Runs that went on after what the client had.
    pub(crate) resumed: usize,
    /// The longest that a caller waited between two pieces, or a run took to stop, in seconds.
    pub(crate) worst: f64,
    pub(crate) lost: Vec<String>,
    pub(crate) repeated: Vec<String>,
    pub(crate) double_runs: Vec<String>,
    pub(crate) broken: Vec<String>,
    /// What is worth telling and no problem.
    pub(crate) notes: Vec<String>,
}

impl Report {
    pub(crate) fn is_good(&self) -> bool {
        let Self { lost, repeated, double_runs, broken, .. } = self;
        [lost, repeated, double_runs, broken].iter().all(|problems| problems.is_empty())
    }

    /// Takes in another round of the same scenario.
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

/// Reads the round in `dir` and judges it.
pub(crate) fn read(dir: &Path) -> Result<Report> {
    let lines = journal::read(dir)?;
    let copies = Copies::read(dir, &lines)?;
    judge(&lines, &copies)
}

/// Judges a round by its journal.
fn judge(lines: &[Line], copies: &Copies) -> Result<Report> {
    let plan = plan(lines).context("the journal has no plan")?;
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
    pace::check(plan, &replies, &runs, &mut report);
    let place = format!("{}-{}", plan.scenario, plan.round);
    let Report { lost, repeated, double_runs, broken, .. } = &mut report;
    for problem in [lost, repeated, double_runs, broken].into_iter().flatten() {
        *problem = format!("{place}: {problem}");
    }
    Ok(report)
}

fn plan(lines: &[Line]) -> Option<&Plan> {
    lines.iter().find_map(|line| match &line.what {
        What::Plan(plan) => Some(plan),
        _ => None,
    })
}
