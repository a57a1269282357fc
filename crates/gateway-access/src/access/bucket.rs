//! Token bucket: a quantity that refills over one minute, may be overdrawn, and can be resized.

use std::time::Duration;

use tokio::time::Instant;

/// Internal units of one token. A bucket of capacity `c` refills by `c` units per nanosecond, so a
/// whole minute refills it exactly, without rounding.
const UNIT: i128 = 60_000_000_000;

/// Largest capacity of a bucket. All arithmetic stays exact up to it.
pub(super) const MAX_CAPACITY: u64 = 1_000_000_000_000;

/// Bucket that refills from empty to full in one minute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    capacity: u64,
    /// Content in units; negative if more was taken than was there.
    level: i128,
    refilled: Instant,
}

impl Bucket {
    /// Creates a full bucket. The capacity is brought into the range from 1 to [`MAX_CAPACITY`].
    pub(super) fn new(capacity: u64, now: Instant) -> Self {
        let capacity = capacity.clamp(1, MAX_CAPACITY);
        Self { capacity, level: units(capacity), refilled: now }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Adds what has flowed in since the last call.
    pub(super) fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.refilled).as_nanos();
        let passed = i128::try_from(passed).unwrap_or(i128::MAX);
        let added = passed.saturating_mul(self.capacity.into());
        self.level = self.level.saturating_add(added).min(units(self.capacity));
        self.refilled = self.refilled.max(now);
    }

    /// Returns the time until this amount is there; zero if it is there now.
    ///
    /// An amount above the capacity is never there: compare it with [`Self::capacity`] first.
    pub(super) fn wait_for(&self, amount: u64) -> Duration {
        self.until(units(amount))
    }

    /// Returns the time until the bucket is full.
    pub(super) fn until_full(&self) -> Duration {
        self.until(units(self.capacity))
    }

    /// Takes an amount, even if it is not there.
    pub(super) fn take(&mut self, amount: u64) {
        self.level = self.level.saturating_sub(units(amount));
    }

    /// Puts an amount back, up to the capacity.
    pub(super) fn give(&mut self, amount: u64) {
        self.level = self.level.saturating_add(units(amount)).min(units(self.capacity));
    }

    /// Returns the number of whole tokens that are there.
    pub(super) fn remaining(&self) -> u64 {
        u64::try_from(self.level.max(0) / UNIT).unwrap_or(u64::MAX)
    }

    /// Changes the capacity. The bucket stays as full in proportion, so that the time until it is
    /// full does not change. A preceding [`Self::refill`] would make no difference.
    pub(super) fn resize(&mut self, capacity: u64) {
        let capacity = capacity.clamp(1, MAX_CAPACITY);
        if capacity != self.capacity {
            self.level = self.level.saturating_mul(capacity.into()) / i128::from(self.capacity);
            self.capacity = capacity;
        }
    }

    fn until(&self, level: i128) -> Duration {
        let missing = level.saturating_sub(self.level).max(0);
        // Rounded up: after this time, the level is reached.
        let capacity = i128::from(self.capacity);
        let nanoseconds = missing / capacity + i128::from(missing % capacity != 0);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

fn units(amount: u64) -> i128 {
    i128::from(amount) * UNIT
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::{any, proptest};
    use tokio::time::Instant;

    use super::{Bucket, MAX_CAPACITY};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_bucket_refills_by_its_capacity_in_a_minute_and_no_further() {
        let now = Instant::now();
        let mut bucket = Bucket::new(60, now);
        bucket.take(60);
        assert_eq!((bucket.remaining(), bucket.wait_for(1)), (0, SECOND));
        bucket.refill(now + Duration::from_millis(1500));
        assert_eq!((bucket.remaining(), bucket.wait_for(2)), (1, SECOND / 2));
        bucket.refill(now + 90 * SECOND);
        assert_eq!((bucket.remaining(), bucket.until_full()), (60, Duration::ZERO));
    }

    #[test]
    fn what_is_taken_too_much_is_a_debt_that_time_pays() {
        let now = Instant::now();
        let mut bucket = Bucket::new(60, now);
        bucket.take(90);
        assert_eq!((bucket.remaining(), bucket.wait_for(0)), (0, 30 * SECOND));
        bucket.refill(now + 31 * SECOND);
        assert_eq!((bucket.remaining(), bucket.until_full()), (1, 59 * SECOND));
        bucket.give(1_000);
        assert_eq!(bucket.remaining(), 60);
    }

    #[test]
    fn a_resized_bucket_is_full_at_the_time_at_which_it_was_to_be_full() {
        let now = Instant::now();
        for (taken, capacity) in [(15, 600), (15, 6), (150, 600), (150, 1), (0, 7)] {
            let mut bucket = Bucket::new(60, now);
            bucket.take(taken);
            let before = bucket.until_full();
            bucket.resize(capacity);
            assert_eq!((bucket.capacity(), bucket.until_full()), (capacity, before));
        }
    }

    #[test]
    fn a_clock_that_goes_back_takes_nothing() {
        let now = Instant::now() + 60 * SECOND;
        let mut bucket = Bucket::new(60, now);
        bucket.take(60);
        bucket.refill(now - 30 * SECOND);
        assert_eq!(bucket.remaining(), 0);
        bucket.refill(now + SECOND);
        assert_eq!(bucket.remaining(), 1);
    }

    proptest! {
        #[test]
        fn after_the_told_time_the_amount_is_there_and_not_before(
            capacity in 1..=MAX_CAPACITY, taken in 0..2 * MAX_CAPACITY, share in 0.0..=1.0_f64,
        ) {
            let now = Instant::now();
            let mut bucket = Bucket::new(capacity, now);
            bucket.take(taken);
            let amount = (capacity as f64 * share) as u64;
            let wait = bucket.wait_for(amount);
            let mut early = bucket;
            bucket.refill(now + wait);
            assert_eq!(bucket.wait_for(amount), Duration::ZERO);
            assert!(bucket.remaining() >= amount && bucket.level >= 0);
            if let Some(before) = wait.checked_sub(Duration::from_nanos(1)) {
                early.refill(now + before);
                assert!(early.wait_for(amount) > Duration::ZERO);
            }
        }

        #[test]
        fn no_sequence_of_amounts_overflows(
            capacity in any::<u64>(), calls in proptest::collection::vec((0..4_u8, any::<u64>()), 0..50),
        ) {
            let now = Instant::now();
            let mut bucket = Bucket::new(capacity, now);
            for (call, amount) in calls {
                match call {
                    0 => bucket.take(amount),
                    1 => bucket.give(amount),
                    2 => bucket.resize(amount),
                    _ => bucket.refill(now + Duration::from_secs(amount >> 32)),
                }
                assert!(bucket.remaining() <= bucket.capacity());
                let _ = (bucket.wait_for(amount), bucket.until_full());
            }
        }
    }
}
