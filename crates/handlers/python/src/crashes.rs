//! Count of crashes, and the wait before the next start.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Wait before the second start in a row; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Maximum wait before a start.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Crashes within a window of time.
#[derive(Debug)]
pub(crate) struct Crashes {
    most: usize,
    window: Duration,
    times: VecDeque<Instant>,
}

impl Crashes {
    /// Creates a count that is exhausted by `most` crashes within `window`.
    pub(crate) fn new(most: usize, window: Duration) -> Self {
        Self { most, window, times: VecDeque::new() }
    }

    /// Counts a crash. Returns the wait before the next start, or `None` if there were too many.
    pub(crate) fn count(&mut self, now: Instant) -> Option<Duration> {
        self.times.push_back(now);
        while self.times.front().is_some_and(|first| now.duration_since(*first) > self.window) {
            self.times.pop_front();
        }
        let crashes = self.times.len();
        let doublings = u32::try_from(crashes.saturating_sub(2)).unwrap_or(u32::MAX).min(16);
        let wait = if crashes == 1 { Duration::ZERO } else { FIRST_WAIT * (1 << doublings) };
        (crashes < self.most).then_some(wait.min(LONGEST_WAIT))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Crashes;

    #[test]
    fn the_first_start_is_at_once_and_the_next_ones_wait_ever_longer() {
        let mut crashes = Crashes::new(12, Duration::from_secs(60));
        let now = Instant::now();
        let waits: Vec<_> = (0..11).map(|_| crashes.count(now).unwrap().as_millis()).collect();
        assert_eq!(waits, [0, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000, 30000]);
        assert_eq!(crashes.count(now), None);
    }

    #[test]
    fn crashes_outside_of_the_window_do_not_count() {
        let mut crashes = Crashes::new(2, Duration::from_secs(60));
        let start = Instant::now();
        assert_eq!(crashes.count(start), Some(Duration::ZERO));
        let later = start + Duration::from_secs(61);
        assert_eq!(crashes.count(later), Some(Duration::ZERO));
        assert_eq!(crashes.count(later), None);
    }
}
