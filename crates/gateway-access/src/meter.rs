//! Bytes of a WebSocket that no whole message has used, in the account of their tenant.
//!
//! A message may be large and need not end. Its bytes are in memory before the session sees any of it,
//! so they are counted as the connection reads them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::shares::Account;

/// Time that a message may take beyond that of its bytes at [`RATE`].
const GRACE: Duration = Duration::from_secs(10);

/// Lowest average rate of a message, in bytes per second, as for uploads.
const RATE: u64 = 16 * 1024;

/// Count of a connection's bytes. It counts from [`Meter::start`] on.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Mutex<Option<Counted>>>);

#[derive(Debug)]
struct Counted {
    account: Account,
    /// Bytes since the last whole message.
    unused: usize,
    /// Bytes of whole messages that are still in memory.
    kept: usize,
    /// Time of the first of the unused bytes.
    began: Instant,
}

impl Meter {
    /// Counts the bytes from now on.
    pub fn start(&self, account: Account) {
        let began = Instant::now();
        *self.0.lock() = Some(Counted { account, unused: 0, kept: 0, began });
    }

    /// Counts bytes that the connection has read. Returns false if the tenant has no memory for them.
    pub fn read(&self, bytes: usize) -> bool {
        let mut counted = self.0.lock();
        let Some(counted) = &mut *counted else { return true };
        if counted.unused == 0 {
            counted.began = Instant::now();
        }
        counted.unused += bytes;
        counted.account.take(bytes)
    }

    /// Notes a whole message that stays in memory: nothing before it is unused.
    pub fn used(&self, kept: usize) {
        if let Some(counted) = &mut *self.0.lock() {
            (counted.unused, counted.kept) = (0, counted.kept + kept);
            counted.account.shrink(counted.kept);
        }
    }

    /// Notes a ping or a pong with so many bytes, which may stand between the parts of a message.
    pub fn control(&self, payload: usize) {
        /// Bytes of the head of a client's control frame (RFC 6455, section 5.2).
        const HEAD: usize = 6;
        if let Some(counted) = &mut *self.0.lock() {
            counted.unused = counted.unused.saturating_sub(HEAD + payload);
            counted.account.shrink(counted.kept + counted.unused);
        }
    }

    /// Notes that a message is in memory no longer.
    pub fn dropped(&self, kept: usize) {
        if let Some(counted) = &mut *self.0.lock() {
            counted.kept = counted.kept.saturating_sub(kept);
            counted.account.shrink(counted.kept + counted.unused);
        }
    }

    /// Returns true if a message has begun and does not arrive at the lowest rate.
    pub fn is_late(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|counted| {
            let time = GRACE + Duration::from_millis(counted.unused as u64 * 1000 / RATE);
            counted.unused > 0 && counted.began.elapsed() > time
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::{GRACE, Meter};
    use crate::shares::Shares;

    #[tokio::test(start_paused = true)]
    async fn m1_a_message_that_does_not_end_is_counted_and_late() {
        let (shares, meter) = (Shares::new(2000), Meter::default());
        assert!(meter.read(10_000), "nothing is counted before the start");
        meter.start(shares.account(&"t".parse().unwrap()));
        assert!(meter.read(600) && !meter.is_late());
        advance(GRACE + Duration::from_secs(1)).await;
        assert!(meter.is_late());
        // A pong between its parts does not end it.
        assert!(meter.read(10));
        meter.control(4);
        assert!(meter.is_late() && meter.read(300) && !meter.read(600));
        meter.used(700);
        assert!(!meter.is_late() && meter.read(300) && !meter.read(10));
        meter.used(0);
        meter.dropped(700);
        assert!(meter.read(1000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_only_answers_pings_is_not_late() {
        let meter = Meter::default();
        meter.start(Shares::new(2000).account(&"t".parse().unwrap()));
        for _ in 0..20 {
            assert!(meter.read(6));
            meter.control(0);
            advance(Duration::from_secs(5)).await;
            assert!(!meter.is_late());
        }
    }
}
