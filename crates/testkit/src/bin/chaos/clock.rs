//! The one clock that all journals are written by.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since this machine started, sleep included: the same in every process, and not
/// moved by whoever moves the time of day, for a single process or for all.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + nanos.unwrap_or(0)
}

/// Seconds between two times of [`now`]; negative if they stand the other way round.
pub(crate) fn seconds(from: u64, to: u64) -> f64 {
    (i128::from(to) - i128::from(from)) as f64 / 1e9
}

/// As [`now`] counts.
pub(crate) const SECOND: u64 = 1_000_000_000;
