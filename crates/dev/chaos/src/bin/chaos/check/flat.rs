//! Check that memory and descriptors of long-running processes do not grow.

use std::collections::BTreeMap;

use crate::journal::{Line, What};
use crate::plan::Plan;

use super::Report;

/// Maximum relative growth of the minimum memory between the second third of a round and the last
/// third. The minimum is compared because an allocator's reserves vary.
const GROWTH: f64 = 0.03;
const GROWTH_KIB: u64 = 1024;

/// Maximum growth of the median number of descriptors.
const DESCRIPTORS: usize = 2;

/// Resident memory in KiB and open descriptors of one process, in time order.
#[derive(Default)]
struct Samples {
    memory: Vec<u64>,
    descriptors: Vec<usize>,
}

pub(super) fn check(plan: &Plan, lines: &[Line], report: &mut Report) {
    if !plan.rules.flat {
        return;
    }
    let mut processes: BTreeMap<&str, Samples> = BTreeMap::new();
    for line in lines {
        if let What::Sample { name, memory_kib, descriptors } = &line.what {
            let samples = processes.entry(name).or_default();
            samples.memory.push(*memory_kib);
            samples.descriptors.push(*descriptors);
        }
    }
    if processes.is_empty() {
        report.broken.push("no process was measured".to_owned());
    }
    for (name, Samples { memory, descriptors }) in processes {
        let (before, after) = (least(&memory, 1), least(&memory, 2));
        let (open_before, open_after) = (middle(&descriptors, 1), middle(&descriptors, 2));
        report.notes.push(format!(
            "{name}: at least {before} KiB and {open_before} descriptors in the second third of the \
             time, {after} KiB and {open_after} in the last"
        ));
        if after > before + GROWTH_KIB.max((before as f64 * GROWTH) as u64) {
            report.broken.push(format!("{name} grew from {before} to {after} KiB"));
        }
        if open_after > open_before + DESCRIPTORS {
            let grew = format!("{name} has {open_after} descriptors open, after {open_before}");
            report.broken.push(grew);
        }
    }
}

fn part<T>(values: &[T], third: usize) -> &[T] {
    let length = values.len() / 3;
    &values[third * length..(third + 1) * length]
}

/// Returns the minimum of a third of the values.
fn least(values: &[u64], third: usize) -> u64 {
    part(values, third).iter().copied().min().unwrap_or_default()
}

/// Returns the median of a third of the values.
fn middle(values: &[usize], third: usize) -> usize {
    let mut part = part(values, third).to_vec();
    part.sort_unstable();
    part.get(part.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Line, Plan, Report, What, check};

    #[track_caller]
    fn judged(memory: impl Fn(u64) -> u64, descriptors: impl Fn(usize) -> usize) -> Vec<String> {
        let sample = |at: u64| Line {
            at,
            what: What::Sample {
                name: "w1".into(),
                memory_kib: memory(at),
                descriptors: descriptors(at as usize),
            },
        };
        let lines: Vec<_> = (0..90).map(sample).collect();
        let (mut plan, mut report) = (Plan::default(), Report::default());
        plan.rules.flat = true;
        check(&plan, &lines, &mut report);
        assert_eq!(report.notes.len(), 1);
        report.broken
    }

    #[test]
    fn what_grows_at_the_start_and_then_stays_is_flat() {
        assert!(judged(|at| 40_000 + at.min(30) * 1000, |_| 20).is_empty());
        assert!(judged(|at| 40_000 + at % 7 * 500, |at| 20 + at % 2).is_empty());
    }

    #[test]
    fn what_goes_on_growing_is_told() {
        assert_eq!(judged(|at| 40_000 + at * 200, |_| 20).len(), 1);
        assert_eq!(judged(|_| 40_000, |at| 20 + at / 10).len(), 1);
    }

    #[test]
    fn a_round_without_samples_proves_nothing() {
        let (mut plan, mut report) = (Plan::default(), Report::default());
        plan.rules.flat = true;
        check(&plan, &[], &mut report);
        assert_eq!(report.broken, ["no process was measured"]);
    }
}
