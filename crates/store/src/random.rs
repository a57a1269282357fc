//! Random numbers for names and for jitter.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns a random number; the time in nanoseconds where the system gives no random bytes.
pub(crate) fn random() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    getrandom::u64().unwrap_or_else(|_| now().as_nanos() as u64)
}

/// Returns a random part of a duration: full jitter for back-off.
pub(crate) fn random_part(longest: Duration) -> Duration {
    longest.mul_f64(random() as f64 / u64::MAX as f64)
}
