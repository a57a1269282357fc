//! Whether the engine's thread goes on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counted by the thread as it goes on: odd where it will soon be further, even where it may take as
/// long as it likes.
#[derive(Debug, Default)]
pub(super) struct Pulse(AtomicU64);

impl Pulse {
    /// What follows takes a moment.
    pub(super) fn works(&self) {
        self.0.store((self.count() + 2) | 1, Ordering::Relaxed);
    }

    /// What follows may take long: a wait for commands, or a step that nobody can follow.
    pub(super) fn rests(&self) {
        self.0.store((self.count() + 2) & !1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What somebody saw who looks now and then.
#[derive(Debug)]
pub(super) struct Sight {
    patience: Duration,
    seen: Mutex<Option<Seen>>,
}

#[derive(Debug)]
struct Seen {
    /// The pulse, and the meetings of the first rank.
    counts: (u64, u64),
    last: Instant,
    /// How long they have been the same.
    same: Duration,
}

impl Sight {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, seen: Mutex::new(None) }
    }

    /// Looks, and gives how long the thread may take, if it has taken longer. It has gone on too if it
    /// has met the other ranks again.
    pub(super) fn too_long(&self, pulse: &Pulse, meetings: u64) -> Option<Duration> {
        let counts = (pulse.count(), meetings);
        let now = Instant::now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let same = match &*seen {
            // A process that was stopped has not gone on either: no one look may say so alone.
            Some(seen) if seen.counts == counts => {
                seen.same + (now - seen.last).min(self.patience / 2)
            }
            _ => Duration::ZERO,
        };
        *seen = Some(Seen { counts, last: now, same });
        (counts.0 % 2 == 1 && same >= self.patience).then_some(self.patience)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Pulse, Sight};

    #[test]
    fn a_thread_that_should_go_on_and_does_not_is_seen() {
        let (pulse, sight) = (Pulse::default(), Sight::new(Duration::from_millis(20)));
        let look = |meetings| {
            let late = || {
                std::thread::sleep(Duration::from_millis(25));
                sight.too_long(&pulse, meetings).is_some()
            };
            let [first, second, third] = [late(), late(), late()];
            // However long the one before it is ago, no look but the third can tell.
            assert!(!first && !second);
            third
        };
        // It waits for its first command.
        assert!(!look(0));
        pulse.works();
        assert!(look(0));
        // It is further.
        pulse.works();
        assert!(look(0));
        // It has met the others.
        assert!(look(1));
        pulse.rests();
        assert!(!look(1));
    }
}
