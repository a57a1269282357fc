//! Random numbers and bytes of the operating system.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Error of an operating system that provides no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoRandomness(getrandom::Error);

/// Fills a buffer with random bytes, which may become a secret.
///
/// # Errors
///
/// Returns an error if the operating system provides none.
pub fn fill(buffer: &mut [u8]) -> Result<(), NoRandomness> {
    getrandom::fill(buffer).map_err(NoRandomness)
}

/// Returns random bytes, which may become a secret.
///
/// # Errors
///
/// Returns an error if the operating system provides none.
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

/// Returns a random number, as [`Pauses::next`](crate::Pauses::next) needs it and a file's name takes it;
/// the time in nanoseconds where the operating system provides no random bytes. Not for secrets.
pub fn random() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    getrandom::u64().unwrap_or_else(|_| now().as_nanos() as u64)
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
