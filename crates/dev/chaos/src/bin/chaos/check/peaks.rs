//! Check of the peak memory of processes.

use crate::journal::{Line, What};
use crate::plan::Plan;

use super::Report;

/// Checks that no watched process grew by more than its limit.
pub(super) fn check(plan: &Plan, lines: &[Line], report: &mut Report) {
    let mut grown = Vec::new();
    for line in lines {
        let What::Peak { name, first_kib, last_kib, most_kib } = &line.what else { continue };
        let growth = last_kib.saturating_sub(*first_kib);
        grown.push(format!("{name} by {growth}"));
        if growth > *most_kib {
            report.broken.push(format!("{name} grew by {growth} KiB, not {most_kib} at most"));
        }
    }
    if !grown.is_empty() {
        report.notes.push(format!("round {}, growth in KiB: {}", plan.round, grown.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, Plan, Report, What, check};

    #[test]
    fn a_process_may_grow_up_to_its_limit() {
        let line = |last_kib: u64| Line {
            at: 0,
            what: What::Peak { name: "c1".into(), first_kib: 1000, last_kib, most_kib: 500 },
        };
        let mut report = Report::default();
        check(&Plan::default(), &[1000, 1500, 1501].map(line), &mut report);
        assert_eq!(report.broken, ["c1 grew by 501 KiB, not 500 at most"]);
        assert_eq!(report.notes.len(), 1);
    }
}
