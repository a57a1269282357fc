//! Exponential back-off.

use std::time::Duration;

/// Exponential back-off: pauses that double from the first to the longest.
///
/// Each pause is shortened at random by up to half of it, so that many processes do not retry in
/// step. The caller draws the random number, so that a test can fix it.
///
/// ```
/// use std::time::Duration;
///
/// use nsbridge_base::Backoff;
///
/// let mut pauses = Backoff::new(Duration::from_secs(1), Duration::from_secs(3)).pauses();
/// assert_eq!(pauses.next(0), Duration::from_secs(1));
/// assert_eq!(pauses.next(u64::MAX), Duration::from_secs(1));
/// assert_eq!(pauses.next(0), Duration::from_secs(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Creates a back-off from its first and its longest pause.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Returns the pauses between the tries of one operation.
    pub const fn pauses(&self) -> Pauses {
        Pauses { backoff: *self, next: self.first }
    }
}

/// Pauses between the tries of one operation; there is always a next one.
#[derive(Clone, Debug)]
pub struct Pauses {
    backoff: Backoff,
    next: Duration,
}

impl Pauses {
    /// Returns the next pause: whole for a `random` of 0, half as long for the largest.
    pub fn next(&mut self, random: u64) -> Duration {
        let pause = self.next.min(self.backoff.longest);
        self.next = pause.saturating_mul(2);
        pause - (pause / 2).mul_f64(random as f64 / u64::MAX as f64)
    }

    /// Begins anew with the first pause, after a success.
    pub const fn reset(&mut self) {
        self.next = self.backoff.first;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::Backoff;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_success() {
        let mut pauses = Backoff::new(SECOND, 5 * SECOND).pauses();
        assert_eq!([0; 5].map(|random| pauses.next(random).as_secs()), [1, 2, 4, 5, 5]);
        pauses.reset();
        assert_eq!(pauses.next(0), SECOND);
    }

    #[test]
    fn a_first_pause_beyond_the_longest_is_the_longest() {
        let mut pauses = Backoff::new(5 * SECOND, 2 * SECOND).pauses();
        assert_eq!([0; 2].map(|random| pauses.next(random)), [2 * SECOND; 2]);
    }

    proptest! {
        #[test]
        fn a_pause_loses_at_most_half_and_the_next_one_is_not_shorter_for_it(
            randoms in proptest::collection::vec(any::<u64>(), 8),
        ) {
            let mut pauses = Backoff::new(2 * SECOND, 10 * SECOND).pauses();
            for (random, whole) in randoms.into_iter().zip([2, 4, 8, 10, 10, 10, 10, 10]) {
                let (pause, whole) = (pauses.next(random), whole * SECOND);
                prop_assert!(whole / 2 <= pause && pause <= whole, "{pause:?} of {whole:?}");
            }
        }
    }
}
