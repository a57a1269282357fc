//! Random numbers, for processes that must not act in step.

use std::time::Duration;

/// Returns a random number, as [`Pauses::next`](crate::Pauses::next) needs it; 0 if the system gives
/// no random bytes.
pub fn random() -> u64 {
    getrandom::u64().unwrap_or_default()
}

/// Returns a random duration between zero and `whole`, for callers that must not act in step.
pub fn random_part(whole: Duration) -> Duration {
    whole.mul_f64(random() as f64 / u64::MAX as f64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::random_part;

    #[test]
    fn random_parts_are_spread_over_the_whole() {
        let whole = Duration::from_secs(1);
        let parts: Vec<_> = (0..1000).map(|_| random_part(whole)).collect();
        let below = |limit| parts.iter().filter(|part| **part < limit).count();
        assert_eq!(below(whole + Duration::from_nanos(1)), 1000);
        // Six standard deviations of a fair coin.
        assert!((405..=595).contains(&below(whole / 2)), "{} of 1000", below(whole / 2));
    }
}
