//! Whether the engine's thread goes on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Watch;

/// Counted by the thread as it goes on: odd where it will soon be further, even where it may take as
/// long as it likes.
#[derive(Debug, Default)]
pub(super) struct Pulse(AtomicU64);

impl Pulse {
    /// What follows takes a moment.
    pub(super) fn works(&self) {
        self.0.store((self.count() + 2) | 1, Ordering::Relaxed);
    }

    /// What follows may take long: a wait for commands, or a draft that nobody can follow.
    pub(super) fn rests(&self) {
        self.0.store((self.count() + 2) & !1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// So many times as long it may take while other ranks are in a step with it: who waits for whom, they
/// find out themselves, and where nobody waits, all compute.
const WHILE_OTHERS_WORK: u32 = 5;

/// What somebody saw who looks now and then.
#[derive(Debug)]
pub(super) struct Sight {
    patience: Duration,
    /// The model's, and that of the one that drafts.
    watches: Vec<Watch>,
    seen: Mutex<Option<Seen>>,
}

#[derive(Debug)]
struct Seen {
    /// The pulse, and the meetings of the first ranks.
    counts: (u64, u64),
    last: Instant,
    /// How long they have been the same.
    same: Duration,
}

impl Sight {
    pub(super) fn new(patience: Duration, watches: Vec<Watch>) -> Self {
        Self { patience, watches, seen: Mutex::new(None) }
    }

    /// Looks, and gives how long the thread may take, if it has taken longer. It has gone on too if it
    /// has met other ranks again.
    pub(super) fn too_long(&self, pulse: &Pulse) -> Option<Duration> {
        let counts = (pulse.count(), self.watches.iter().map(Watch::meetings).sum());
        let now = Instant::now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let same = match &*seen {
            // A process that was stopped has not gone on either: no one look may say so alone.
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

    use super::{Pulse, Sight};
    use crate::Watch;
    use crate::comm::Meeting;

    /// Whether it is seen at the last of so many looks, and at none before.
    fn seen_at(pulse: &Pulse, sight: &Sight, looks: usize) -> bool {
        let late = || {
            std::thread::sleep(Duration::from_millis(25));
            sight.too_long(pulse).is_some()
        };
        // However long the one before it is ago, a look counts for half of the patience at most.
        assert!(!(1..looks).any(|_| late()));
        late()
    }

    #[test]
    fn a_thread_that_should_go_on_and_does_not_is_seen() {
        let meeting = Arc::new(Meeting::new(2, Duration::MAX));
        let mut first = meeting.members::<()>().remove(0);
        let watches = vec![Watch::of(meeting.clone())];
        let (pulse, sight) = (Pulse::default(), Sight::new(Duration::from_millis(20), watches));
        // It waits for its first command.
        assert!(!seen_at(&pulse, &sight, 5));
        pulse.works();
        assert!(seen_at(&pulse, &sight, 3));
        // It is further.
        pulse.works();
        assert!(seen_at(&pulse, &sight, 3));
        // It has met the others.
        first.pass();
        assert!(seen_at(&pulse, &sight, 3));
        // They compute, and then nobody does.
        first.pass();
        assert!(meeting.work(|| seen_at(&pulse, &sight, 11)));
        first.pass();
        meeting.work(|| assert!(!seen_at(&pulse, &sight, 5)));
        assert!(seen_at(&pulse, &sight, 1));
        // They compute, and have waited for it in vain.
        first.pass();
        meeting.end(0, "did not answer");
        assert!(meeting.work(|| seen_at(&pulse, &sight, 3)));
        pulse.rests();
        assert!(!seen_at(&pulse, &sight, 5));
    }
}
