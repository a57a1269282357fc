//! Workers that were asked for and do not take requests yet.

/// Count of pending workers: those of the last number that do not run, within a time limit.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    limit_s: f64,
    /// Last number that was asked for, if there is one.
    asked: Option<u32>,
    running: u32,
    /// Time at which workers were asked for, or at which one came.
    since_s: f64,
}

impl Pending {
    pub(crate) fn new(limit_s: f64) -> Self {
        Self { limit_s, asked: None, running: 0, since_s: 0.0 }
    }

    /// Returns the number of pending workers, and of those that were waited for too long.
    pub(crate) fn count(&mut self, at_s: f64, running: u32) -> (u32, u32) {
        let missing = self.asked.map_or(0, |asked| asked.saturating_sub(running));
        if missing == 0 || running > self.running {
            self.since_s = at_s;
        }
        self.running = running;
        if at_s - self.since_s > self.limit_s { (0, missing) } else { (missing, 0) }
    }

    /// Records the number that is asked for.
    pub(crate) fn ask(&mut self, at_s: f64, desired: u32) {
        if self.asked.replace(desired).is_none_or(|before| desired > before) {
            self.since_s = at_s;
        }
    }
}

#[cfg(test)]
mod tests {
    //! Tests of pending workers.

    use super::Pending;

    #[test]
    fn workers_are_waited_for_until_the_limit_after_the_last_one_came() {
        let mut pending = Pending::new(100.0);
        assert_eq!(pending.count(0.0, 2), (0, 0), "nothing was asked for");
        pending.ask(0.0, 5);
        assert_eq!(pending.count(90.0, 2), (3, 0));
        assert_eq!(pending.count(99.0, 3), (2, 0), "one came");
        pending.ask(99.0, 5);
        assert_eq!(pending.count(190.0, 3), (2, 0));
        assert_eq!(pending.count(200.0, 3), (0, 2), "the others did not");
        pending.ask(200.0, 6);
        assert_eq!(pending.count(201.0, 3), (3, 0), "more were asked for");
        pending.ask(201.0, 3);
        assert_eq!(pending.count(900.0, 3), (0, 0));
        assert_eq!(pending.count(901.0, 2), (1, 0), "one was lost, and comes again");
    }
}
