//! Attempt numbers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of an attempt: `epoch << 16 | min(deliveries + 1, 65535)`.
///
/// The epoch counts the copies of a request that were enqueued before this one. The low half counts
/// the deliveries of one copy, so the first attempt is 1. Two copies of a request may share a
/// number, so a reply stream is identified by its salt and never by its attempt number.
///
/// ```
/// use nsbridge_protocol::AttemptNo;
///
/// assert_eq!(AttemptNo::new(0, 0), AttemptNo(1));
/// assert!(AttemptNo::new(0, 1).is_retry());
/// // A copy that was enqueued later has a higher number than each delivery of the first copy.
/// assert!(AttemptNo::new(1, 0) > AttemptNo::new(0, 1000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptNo(pub u32);

impl AttemptNo {
    /// Returns the attempt for a copy with this `epoch` and this number of earlier deliveries.
    pub fn new(epoch: u16, delivery: u64) -> Self {
        let low = delivery.saturating_add(1).min(0xffff) as u32;
        Self(u32::from(epoch) << 16 | low)
    }

    /// Returns true if an earlier attempt may exist.
    pub fn is_retry(self) -> bool {
        self.0 > 1
    }
}

/// Writes the number of deliveries, and the number of retries before them if there were any.
impl fmt::Display for AttemptNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 >> 16, self.0 & 0xffff) {
            (0, delivery) => write!(f, "{delivery}"),
            (retry, 1) => write!(f, "retry-{retry}"),
            (retry, delivery) => write!(f, "retry-{retry}.{delivery}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AttemptNo;

    #[test]
    fn a2_the_first_attempt_is_one_and_the_count_saturates_below_the_epoch() {
        assert_eq!(AttemptNo::new(0, 0), AttemptNo(1));
        assert_eq!(AttemptNo::new(0, 1_000_000), AttemptNo(0xffff));
        assert_eq!(AttemptNo::new(2, u64::MAX), AttemptNo(0x2_ffff));
        assert!(AttemptNo::new(1, 0) > AttemptNo::new(0, 70_000));
        assert!(!AttemptNo::new(0, 0).is_retry() && AttemptNo::new(1, 0).is_retry());
    }

    #[test]
    fn a_log_shows_retries_and_deliveries_apart() {
        let shown = [(0, 0), (0, 1), (1, 0), (2, 2)]
            .map(|(epoch, delivery)| AttemptNo::new(epoch, delivery).to_string());
        assert_eq!(shown, ["1", "2", "retry-1", "retry-2.3"]);
    }
}
