//! Pauses of the worker, while its key service is busy or after another failure.

use std::time::Duration;

use nsbridge_base::random::random;
use nsbridge_base::{Backoff, Pauses};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::timing::Timing;

/// Time before which no delivery is begun. Deliveries that have come wait in the worker.
#[derive(Debug)]
pub(crate) struct IntakePause(Mutex<State>);

#[derive(Debug)]
struct State {
    until: Option<Instant>,
    /// Pauses since the key service last answered.
    pauses: Pauses,
}

impl IntakePause {
    pub(crate) fn new(timing: &Timing) -> Self {
        let backoff = Backoff::new(timing.key_pause, timing.max_key_pause);
        Self(Mutex::new(State { until: None, pauses: backoff.pauses() }))
    }

    /// Pauses for at least this long.
    pub(crate) fn pause(&self, pause: Duration) {
        let until = Instant::now() + pause;
        let mut state = self.0.lock();
        state.until = state.until.max(Some(until));
    }

    /// Pauses because the key service could not answer, about twice as long each time. Returns the
    /// length of the pause.
    pub(crate) fn back_off(&self) -> Duration {
        let now = Instant::now();
        let mut state = self.0.lock();
        // Requests that failed together count as one failure.
        if let Some(until) = state.until.filter(|until| *until > now) {
            return until - now;
        }
        let pause = state.pauses.next(random());
        state.until = Some(now + pause);
        pause
    }

    /// Resets the back-off after an answer of the key service.
    pub(crate) fn reset(&self) {
        self.0.lock().pauses.reset();
    }

    /// Waits until no pause is in force.
    pub(crate) async fn resumed(&self) {
        loop {
            let until = self.0.lock().until.filter(|until| *until > Instant::now());
            let Some(until) = until else { return };
            sleep_until(until).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, advance};

    use super::IntakePause;
    use crate::timing::Timing;

    fn seconds(whole: f64, pause: Duration) -> bool {
        (whole / 2.0..=whole).contains(&pause.as_secs_f64())
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_the_key_service_grow_to_a_minute_and_begin_anew() {
        let intake = IntakePause::new(&Timing::default());
        for expected in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            let pause = intake.back_off();
            assert!(seconds(expected, pause), "{pause:?} for {expected}");
            let began = Instant::now();
            intake.resumed().await;
            assert!(began.elapsed() >= pause);
        }
        intake.reset();
        assert!(seconds(1.0, intake.back_off()));
    }

    #[tokio::test(start_paused = true)]
    async fn many_that_fail_together_count_once() {
        let intake = IntakePause::new(&Timing::default());
        let first = intake.back_off();
        advance(Duration::from_millis(100)).await;
        for _ in 0..50 {
            assert_eq!(intake.back_off(), first - Duration::from_millis(100));
        }
        intake.resumed().await;
        assert!(seconds(2.0, intake.back_off()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_shorter_rest_ends_no_longer_one() {
        let (intake, began) = (IntakePause::new(&Timing::default()), Instant::now());
        intake.pause(Duration::from_secs(5));
        intake.pause(Duration::from_secs(1));
        intake.resumed().await;
        assert!(began.elapsed() >= Duration::from_secs(5));
    }
}
