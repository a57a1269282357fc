//! Random numbers for names and for back-offs.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns a random number; the time in nanoseconds where the system gives no random bytes.
pub(crate) fn random() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    getrandom::u64().unwrap_or_else(|_| now().as_nanos() as u64)
}
