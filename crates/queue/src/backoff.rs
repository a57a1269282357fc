//! Exponential back-off with jitter.

use std::time::Duration;

/// Exponential back-off: pauses that double from the first to the longest.
///
/// Each pause is shortened by up to half of it, at random, so that many processes do not retry in
/// step.
///
/// ```
/// use std::time::Duration;
///
/// use nsbridge_queue::Backoff;
///
/// let mut pauses = Backoff::new(Duration::from_secs(1), Duration::from_secs(3)).pauses();
/// assert!(pauses.next() <= Duration::from_secs(1));
/// assert!(pauses.next() >= Duration::from_secs(1));
/// assert!(pauses.next() <= Duration::from_secs(3));
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
        Pauses { next: self.first, longest: self.longest }
    }
}

/// Pauses between the tries of one operation; there is always a next one.
#[derive(Clone, Debug)]
pub struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Pauses {
    /// Returns the next pause.
    #[expect(clippy::should_implement_trait, reason = "an iterator's `next` may return nothing")]
    pub fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        jitter(pause)
    }
}

/// Returns a random duration between half of the pause and all of it.
pub(crate) fn jitter(pause: Duration) -> Duration {
    pause / 2 + random_part(pause / 2)
}

/// Returns a random duration between zero and `whole`, for callers that must not act in step.
///
/// Returns `whole` if no randomness is available.
pub fn random_part(whole: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX);
    whole.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Backoff;

    #[test]
    fn pauses_double_up_to_the_longest_and_lose_at_most_half() {
        let seconds = Duration::from_secs;
        let mut pauses = Backoff::new(seconds(2), seconds(10)).pauses();
        for whole in [2, 4, 8, 10, 10].map(seconds) {
            let pause = pauses.next();
            assert!(whole / 2 <= pause && pause <= whole, "{pause:?} of {whole:?}");
        }
    }
}
