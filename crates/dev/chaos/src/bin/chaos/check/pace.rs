//! Comparison of the time that requests took with faults and without.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::clock::seconds;
use crate::plan::{Pace, Plan};

use super::Report;
use super::replies::{Replies, Reply};
use super::runs::Runs;

/// Requests that were submitted at once, with their duration.
struct Group<'a> {
    replies: Vec<&'a Reply>,
    /// Wall time from the first submission to the last end, in seconds.
    wall: f64,
}

pub(super) fn check(plan: &Plan, replies: &Replies, runs: &Runs, report: &mut Report) {
    let Some(Pace { undisturbed, at_most }) = plan.rules.pace else { return };
    let groups = [0..undisturbed, undisturbed..plan.asks.len()].map(|asks| group(replies, asks));
    let [Some(before), Some(with)] = groups else {
        report.broken.push("what the faults cost is not known: not all replies ended".to_owned());
        return;
    };
    let times = with.wall / before.wall;
    let (calm, gaps) = (before.gaps(), with.gaps());
    let handed = hand_overs(&with, runs);
    report.notes.push(format!(
        "{}-{}: {} replies took {:.2} s undisturbed, and {} took {:.2} s with faults, {times:.2} \
         times as long; the longest gap of a reply is {:.2} s at worst and {:.2} s in the median \
         (undisturbed {:.2} and {:.2} s), that of {} hand-overs {:.2} s at worst and {:.2} s in the \
         median",
        plan.scenario,
        plan.round,
        before.replies.len(),
        before.wall,
        with.replies.len(),
        with.wall,
        worst(&gaps),
        median(&gaps),
        worst(&calm),
        median(&calm),
        handed.len(),
        worst(&handed),
        median(&handed),
    ));
    if times > at_most {
        let what =
            format!("faults made replies {times:.2} times as long, not {at_most:.2} at most");
        report.broken.push(what);
    }
}

impl Group<'_> {
    /// Returns the longest gap of each reply, sorted.
    fn gaps(&self) -> Vec<f64> {
        sorted(self.replies.iter().map(|reply| reply.worst))
    }
}

/// Returns the replies to these requests; `None` if one of them did not end.
fn group(replies: &Replies, asks: Range<usize>) -> Option<Group<'_>> {
    let mut those = Vec::new();
    for n in asks {
        those.extend(replies.to(n).next());
        those.last().filter(|reply| reply.n == n)?;
    }
    let first = those.iter().filter_map(|reply| reply.asked).min()?;
    let ends = those.iter().map(|reply| Some(reply.end.as_ref()?.0));
    let last = ends.collect::<Option<Vec<u64>>>()?.into_iter().max()?;
    Some(Group { replies: those, wall: seconds(first, last) })
}

/// Returns the gaps in which another run took over, sorted, in seconds.
fn hand_overs(group: &Group<'_>, runs: &Runs) -> Vec<f64> {
    let mut gaps = Vec::new();
    for reply in &group.replies {
        let mut begun = runs.all.iter().filter(|run| run.n == reply.n);
        // Keyed by the number of pieces at hand, because several runs may follow each other within
        // one gap.
        let mut of_reply = BTreeMap::new();
        begun.next();
        for run in begun {
            let had = reply.came.partition_point(|at| *at < run.start);
            if let (Some(before), Some(after)) = (had.checked_sub(1), reply.came.get(had)) {
                of_reply.insert(had, seconds(reply.came[before], *after));
            }
        }
        gaps.extend(of_reply.into_values());
    }
    sorted(gaps)
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

fn worst(sorted: &[f64]) -> f64 {
    sorted.last().copied().unwrap_or_default()
}

/// Returns the median; of an even number of values, the upper middle one.
fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
