//! Watchdog of the engine thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::network::Watch;

/// Progress counter of the engine thread. An odd value means that progress is expected soon, an
/// even value that the thread may take as long as it likes.
#[derive(Debug, Default)]
pub(super) struct Heartbeat(AtomicU64);

impl Heartbeat {
    /// Marks the start of work that is short.
    pub(super) fn expect_soon(&self) {
        self.0.store((self.count() + 2) | 1, Ordering::Relaxed);
    }

    /// Marks the start of work that may take long: a wait for commands, or a draft that nothing
    /// monitors.
    pub(super) fn allow_pause(&self) {
        self.0.store((self.count() + 2) & !1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Factor on the time limit while other ranks compute a step. Ranks that wait for another rank have
/// a timeout of their own; if no rank waits, all of them compute.
const WHILE_OTHERS_WORK: u32 = 5;

/// Watchdog state: the last progress counters and how long they have been unchanged.
#[derive(Debug)]
pub(super) struct Watchdog {
    patience: Duration,
    /// Watches of the target and, if a model drafts, of the draft.
    watches: Vec<Watch>,
    seen: Mutex<Option<Seen>>,
}

#[derive(Debug)]
struct Seen {
    /// Progress counter, and the number of collectives that the first ranks have reached.
    counts: (u64, u64),
    last: Instant,
    /// Time for which the counters have been unchanged.
    same: Duration,
}

impl Watchdog {
    pub(super) fn new(patience: Duration, watches: Vec<Watch>) -> Self {
        Self { patience, watches, seen: Mutex::new(None) }
    }

    /// Checks the counters. Returns the time limit if the thread has exceeded it. Reaching another
    /// collective with the other ranks counts as progress too.
    pub(super) fn overdue(&self, heartbeat: &Heartbeat) -> Option<Duration> {
        let counts = (heartbeat.count(), self.watches.iter().map(Watch::meetings).sum());
        let now = Instant::now();
        let mut seen = self.seen.lock();
        let same = match &*seen {
            // A suspended process makes no progress either, so one check alone cannot exceed the
            // limit.
            Some(seen) if seen.counts == counts => {
                seen.same.saturating_add((now - seen.last).min(self.patience / 2))
            }
            _ => Duration::ZERO,
        };
        *seen = Some(Seen { counts, last: now, same });
        let others_work = self.watches.iter().any(Watch::others_work);
        let times = if others_work { WHILE_OTHERS_WORK } else { 1 };
        let limit = self.patience.saturating_mul(times);
        (counts.0 % 2 == 1 && same >= limit).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{Heartbeat, Watchdog};
    use crate::network::Watch;
    use nsbridge_kernels::collectives::RankGroup;

    /// Returns true if the last of `looks` checks reports the hang and none before it does.
    fn seen_at(heartbeat: &Heartbeat, watchdog: &Watchdog, looks: usize) -> bool {
        let late = || {
            std::thread::sleep(Duration::from_millis(25));
            watchdog.overdue(heartbeat).is_some()
        };
        // Whatever the interval, one check adds at most half of the limit.
        assert!(!(1..looks).any(|_| late()));
        late()
    }

    #[test]
    fn a_thread_that_should_go_on_and_does_not_is_seen() {
        let group = Arc::new(RankGroup::new(2, Duration::MAX));
        let mut first = group.handles::<()>().remove(0);
        let watches = vec![Watch::of(group.clone())];
        let (heartbeat, watchdog) =
            (Heartbeat::default(), Watchdog::new(Duration::from_millis(20), watches));
        // The thread waits for its first command.
        assert!(!seen_at(&heartbeat, &watchdog, 5));
        heartbeat.expect_soon();
        assert!(seen_at(&heartbeat, &watchdog, 3));
        // The thread has made progress.
        heartbeat.expect_soon();
        assert!(seen_at(&heartbeat, &watchdog, 3));
        // The thread has reached a collective.
        first.arrive();
        assert!(seen_at(&heartbeat, &watchdog, 3));
        // Other ranks compute, and then none does.
        first.arrive();
        assert!(group.run_step(|| seen_at(&heartbeat, &watchdog, 11)));
        first.arrive();
        group.run_step(|| assert!(!seen_at(&heartbeat, &watchdog, 5)));
        assert!(seen_at(&heartbeat, &watchdog, 1));
        // Other ranks compute, and their wait for the first rank has timed out.
        first.arrive();
        group.report_lost(0, "did not answer");
        assert!(group.run_step(|| seen_at(&heartbeat, &watchdog, 3)));
        heartbeat.allow_pause();
        assert!(!seen_at(&heartbeat, &watchdog, 5));
    }
}
