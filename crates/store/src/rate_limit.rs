//! Rate limiter for all reads together.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Maximum time for which unused rate is saved up: 100 ms.
const SAVED: Duration = Duration::from_millis(100);

/// Rate limit in bytes a second, or none.
#[derive(Debug)]
pub(crate) struct RateLimit {
    rate: Option<f64>,
    /// Time at which the rate limit has admitted all bytes taken so far.
    paid: Mutex<Option<Instant>>,
}

impl RateLimit {
    pub(crate) fn new(bytes_per_second: Option<f64>) -> Self {
        Self { rate: bytes_per_second, paid: Mutex::default() }
    }

    /// Takes `bytes` bytes and waits until the rate limit admits them.
    pub(crate) async fn wait(&self, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let until = {
            let mut paid = self.paid.lock();
            let now = Instant::now();
            let from = paid.unwrap_or(now).max(now.checked_sub(SAVED).unwrap_or(now));
            let until = from + Duration::from_secs_f64(bytes as f64 / rate);
            *paid = Some(until);
            until
        };
        sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::RateLimit;

    #[tokio::test(start_paused = true)]
    async fn many_readers_together_keep_to_the_cap() {
        let rate_limit = RateLimit::new(Some(1000.0));
        let started = Instant::now();
        tokio::join!(
            async {
                for _ in 0..10 {
                    rate_limit.wait(100).await;
                }
            },
            async {
                for _ in 0..20 {
                    rate_limit.wait(50).await;
                }
            },
        );
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(1800) && took <= Duration::from_secs(2), "{took:?}");
    }
}
