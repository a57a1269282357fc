//! Clock of all journals.

use rustix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds since boot (`CLOCK_BOOTTIME`), suspend included. The clock is the same
/// in every process. Neither a change of the system time nor libfaketime moves it.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + nanos.unwrap_or(0)
}

/// Returns the seconds between two times of [`now`]; negative if `to` is the earlier one.
pub(crate) fn seconds(from: u64, to: u64) -> f64 {
    (i128::from(to) - i128::from(from)) as f64 / 1e9
}

/// One second in the unit of [`now`].
pub(crate) const SECOND: u64 = 1_000_000_000;
