//! Exponential back-off.

use std::time::Duration;

/// Pauses between tries, each twice as long as the one before, up to a maximum.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first.min(longest) }
    }

    /// Returns the pause after another failure.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }

    /// Begins anew, after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.first.min(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Backoff;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        assert_eq!([1, 2, 3, 4].map(|_| backoff.next().as_secs()), [1, 2, 4, 5]);
        backoff.reset();
        assert_eq!(backoff.next(), Duration::from_secs(1));
    }
}
