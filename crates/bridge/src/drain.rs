//! Graceful shutdown.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Graceful-shutdown signal with a deadline; the earliest deadline wins. Cheap to clone.
///
/// SIGTERM, a spot interruption notice and a stopped ECS task may each begin a drain, in any order.
#[derive(Clone, Debug)]
pub struct Drain {
    grace: Duration,
    by: Arc<watch::Sender<Option<Instant>>>,
}

impl Drain {
    /// Creates a signal that has not been given. `grace` is the time for running jobs where the
    /// cause of the drain sets no deadline.
    pub fn new(grace: Duration) -> Self {
        Self { grace, by: Arc::default() }
    }

    /// Begins the drain: the worker takes nothing new, and running jobs get the grace period.
    pub fn begin(&self) {
        self.by(Instant::now() + self.grace);
    }

    /// Begins the drain: the worker takes nothing new, and running jobs get until `moment`. A later
    /// moment than the one that is known changes nothing.
    pub fn by(&self, moment: Instant) {
        self.by.send_if_modified(|by| {
            let earlier = by.is_none_or(|known| moment < known);
            if earlier {
                *by = Some(moment);
            }
            earlier
        });
    }

    /// Returns the deadline of the drain; `None` before it has begun.
    pub fn moment(&self) -> Option<Instant> {
        *self.by.borrow()
    }

    /// Waits until the drain begins, and returns its deadline.
    pub async fn begun(&self) -> Instant {
        let mut orders = self.by.subscribe();
        loop {
            if let Some(moment) = *orders.borrow_and_update() {
                return moment;
            }
            // The sender belongs to `self`, so the wait cannot fail.
            let _ = orders.changed().await;
        }
    }

    /// Waits until the deadline of the drain has passed.
    pub(crate) async fn over(&self) {
        let mut orders = self.by.subscribe();
        loop {
            let moment = self.begun().await;
            orders.mark_unchanged();
            if self.moment() != Some(moment) {
                continue;
            }
            tokio::select! {
                () = sleep_until(moment) => return,
                _ = orders.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::Drain;

    #[tokio::test(start_paused = true)]
    async fn the_earliest_moment_stands() {
        let drain = Drain::new(Duration::from_secs(20));
        assert_eq!(drain.moment(), None);
        let started = Instant::now();
        drain.begin();
        let waiting = tokio::spawn({
            let drain = drain.clone();
            async move { drain.over().await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        drain.by(Instant::now() + Duration::from_secs(5));
        drain.by(Instant::now() + Duration::from_secs(60));
        waiting.await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 6);
        assert_eq!(drain.begun().await, drain.moment().unwrap());
    }
}
