//! The order to leave.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Tells a worker to leave, and by when. Cheap to clone: whoever learns of the end first says so.
///
/// A signal, a spot interruption notice and a stopped task may all come; the earliest moment
/// stands.
#[derive(Clone, Debug)]
pub struct Drain {
    grace: Duration,
    by: Arc<watch::Sender<Option<Instant>>>,
}

impl Drain {
    /// An order that nobody has given yet; `grace` is what running jobs get when nothing else
    /// says how long there is.
    pub fn new(grace: Duration) -> Self {
        Self { grace, by: Arc::default() }
    }

    /// Leave: nothing new is taken, and what runs gets the grace.
    pub fn begin(&self) {
        self.by(Instant::now() + self.grace);
    }

    /// Leave: nothing new is taken, and what runs gets until `moment`.
    pub fn by(&self, moment: Instant) {
        self.by.send_if_modified(|by| {
            let earlier = by.is_none_or(|known| moment < known);
            if earlier {
                *by = Some(moment);
            }
            earlier
        });
    }

    /// When everything must be over; `None` while nobody has given the order.
    pub fn moment(&self) -> Option<Instant> {
        *self.by.borrow()
    }

    /// Waits for the order; tells by when to leave.
    pub async fn begun(&self) -> Instant {
        let mut orders = self.by.subscribe();
        loop {
            if let Some(moment) = *orders.borrow_and_update() {
                return moment;
            }
            // The sender is ours.
            let _ = orders.changed().await;
        }
    }

    /// Waits until the time that was given is over.
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
