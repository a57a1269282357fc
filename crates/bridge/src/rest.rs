//! When the worker takes nothing, because its key service cannot answer or something else failed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The first wait for the key service, and the longest.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Until when no delivery is begun. What has come waits where it is.
#[derive(Debug, Default)]
pub(crate) struct Rest(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    until: Option<Instant>,
    /// Waits for the key service since it answered last.
    row: u32,
}

impl Rest {
    /// Rests at least so long.
    pub(crate) fn take(&self, pause: Duration) {
        let until = Instant::now() + pause;
        let mut state = self.state();
        state.until = state.until.max(Some(until));
    }

    /// The key service could not answer: rests, twice as long each time. Tells for how long.
    pub(crate) fn back_off(&self) -> Duration {
        let now = Instant::now();
        let mut state = self.state();
        // Those that were asked for together fail together, and count once.
        if let Some(until) = state.until.filter(|until| *until > now) {
            return until - now;
        }
        let pause = LONGEST.min(FIRST * (1 << state.row.min(6)));
        // Workers that were refused together do not come back together.
        let pause = pause.mul_f64(0.75 + 0.25 * random());
        state.row += 1;
        state.until = Some(now + pause);
        pause
    }

    /// The key service has answered.
    pub(crate) fn keys_came(&self) {
        self.state().row = 0;
    }

    /// Waits until the worker does not rest.
    pub(crate) async fn over(&self) {
        loop {
            let until = self.state().until.filter(|until| *until > Instant::now());
            let Some(until) = until else { return };
            sleep_until(until).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Between 0 and 1; 1 if the system has no randomness.
fn random() -> f64 {
    getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, advance};

    use super::Rest;

    fn seconds(low: f64, pause: Duration) -> bool {
        (low * 0.75..=low).contains(&pause.as_secs_f64())
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_the_key_service_grow_to_a_minute_and_begin_anew() {
        let rest = Rest::default();
        for expected in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            let pause = rest.back_off();
            assert!(seconds(expected, pause), "{pause:?} for {expected}");
            let began = Instant::now();
            rest.over().await;
            assert!(began.elapsed() >= pause);
        }
        rest.keys_came();
        assert!(seconds(1.0, rest.back_off()));
    }

    #[tokio::test(start_paused = true)]
    async fn many_that_fail_together_count_once() {
        let rest = Rest::default();
        let first = rest.back_off();
        advance(Duration::from_millis(100)).await;
        for _ in 0..50 {
            assert_eq!(rest.back_off(), first - Duration::from_millis(100));
        }
        rest.over().await;
        assert!(seconds(2.0, rest.back_off()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_shorter_rest_ends_no_longer_one() {
        let (rest, began) = (Rest::default(), Instant::now());
        rest.take(Duration::from_secs(5));
        rest.take(Duration::from_secs(1));
        rest.over().await;
        assert!(began.elapsed() >= Duration::from_secs(5));
    }
}
