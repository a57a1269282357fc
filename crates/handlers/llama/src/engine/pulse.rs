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
    /// The pulse, the meetings of the first rank, and since when it is they.
    seen: Mutex<Option<(u64, u64, Instant)>>,
}

impl Sight {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, seen: Mutex::new(None) }
    }

    /// Looks, and gives how long the thread may take, if it has taken longer. It has gone on too if it
    /// has met the other ranks again.
    pub(super) fn too_long(&self, pulse: &Pulse, meetings: u64) -> Option<Duration> {
        let count = pulse.count();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match *seen {
            Some((same, met, since)) if (same, met) == (count, meetings) => {
                (count % 2 == 1 && since.elapsed() > self.patience).then_some(self.patience)
            }
            _ => {
                *seen = Some((count, meetings, Instant::now()));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Pulse, Sight};

    #[test]
    fn a_thread_that_should_go_on_and_does_not_is_seen() {
        let (pulse, sight) = (Pulse::default(), Sight::new(Duration::ZERO));
        let look = |meetings| {
            sight.too_long(&pulse, meetings);
            std::thread::sleep(Duration::from_millis(1));
            sight.too_long(&pulse, meetings).is_some()
        };
        // It waits for its first command.
        assert!(!look(0));
        pulse.works();
        assert!(look(0));
        // It is further: one look is not enough to tell.
        pulse.works();
        assert!(sight.too_long(&pulse, 0).is_none());
        assert!(look(0));
        // It has met the others.
        assert!(sight.too_long(&pulse, 1).is_none());
        assert!(look(1));
        pulse.rests();
        assert!(!look(1));
    }
}
