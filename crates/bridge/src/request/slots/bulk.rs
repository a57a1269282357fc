//! Bulk requests that run, and the selection of those that give up their slots.

use tokio_util::sync::CancellationToken;

/// Bulk requests that run, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct BulkRuns {
    runs: Vec<BulkRun>,
    next: u64,
}

#[derive(Debug)]
struct BulkRun {
    number: u64,
    /// True while the run may not be preempted.
    protected: bool,
    /// True if nothing runs beside it, because it is a suspect.
    alone: bool,
    /// True once the run was told to give up its slot.
    leaving: bool,
    /// Canceled to tell the run that it must give up its slot.
    preempted: CancellationToken,
}

impl BulkRuns {
    /// Adds a run, which is protected at first, and returns its number.
    pub(super) fn begin(&mut self, alone: bool, preempted: CancellationToken) -> u64 {
        self.next += 1;
        let (number, protected, leaving) = (self.next, true, false);
        self.runs.push(BulkRun { number, protected, alone, leaving, preempted });
        number
    }

    /// Returns the number of runs beside others.
    pub(super) fn shared(&self) -> usize {
        self.runs.iter().filter(|run| !run.alone).count()
    }

    /// Ends the protection of a run.
    pub(super) fn expose(&mut self, number: u64) {
        for run in self.runs.iter_mut().filter(|run| run.number == number) {
            run.protected = false;
        }
    }

    /// Removes a run that has given up its slot.
    pub(super) fn end(&mut self, number: u64) {
        self.runs.retain(|run| run.number != number);
    }

    /// Tells runs to give up their slots, until `wanted` of them are leaving. The youngest go first,
    /// because least of their work is lost where a client does not resume.
    pub(super) fn preempt(&mut self, wanted: usize) {
        let leaving = self.runs.iter().filter(|run| run.leaving).count();
        let able = self.runs.iter_mut().rev().filter(|run| run.can_leave());
        able.take(wanted.saturating_sub(leaving)).for_each(BulkRun::leave);
    }

    /// Tells all runs beside others to give up their slots.
    pub(super) fn preempt_shared(&mut self) {
        let able = self.runs.iter_mut().filter(|run| run.can_leave() && !run.alone);
        able.for_each(BulkRun::leave);
    }
}

impl BulkRun {
    fn can_leave(&self) -> bool {
        !self.leaving && !self.protected
    }

    fn leave(&mut self) {
        self.leaving = true;
        self.preempted.cancel();
    }
}
