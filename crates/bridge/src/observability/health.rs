//! Health of a worker, for the liveness and readiness probes of an orchestrator.
//!
//! A process that runs but consumes nothing is worth nothing, so liveness here means that the
//! worker is subscribed to its queue. A worker that loads or drains counts as alive, because a
//! restart would not help.

mod pages;

use std::sync::Arc;
use std::time::Duration;

use nsbridge_protocol::{Fingerprint, ModelName, Revision};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

pub use pages::Pages;

/// State of a worker's health. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    model: ModelName,
    dead_after: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    loaded: bool,
    fingerprint: Option<Fingerprint>,
    revision: Option<Revision>,
    consuming: bool,
    publishing: bool,
    handler_failed: bool,
    calls_stand_still: bool,
    draining: bool,
    /// Time since which the worker takes nothing; not meaningful while it consumes and publishes.
    idle_since: Instant,
}

/// Content of the health pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    pub(crate) alive: bool,
    pub(crate) ready: bool,
    /// True once the handler is loaded and warmed up.
    pub(crate) loaded: bool,
    /// True while the connection is up and subscribed to the model's queue.
    pub(crate) consuming: bool,
    /// True while replies can be published. Else the worker takes no requests.
    pub(crate) publishing: bool,
    /// True while the handler reports that it is well.
    pub(crate) handler_ok: bool,
    /// True while stopped calls end and the handler's thread makes progress.
    pub(crate) calls_ok: bool,
    pub(crate) draining: bool,
    pub(crate) model: ModelName,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) revision: Option<Revision>,
}

impl Health {
    /// Creates the health of a worker that begins to load. After the load, the worker counts as
    /// dead if it has consumed nothing for `dead_after`.
    pub fn new(model: ModelName, dead_after: Duration) -> Self {
        let state = State {
            loaded: false,
            fingerprint: None,
            revision: None,
            consuming: false,
            publishing: false,
            handler_failed: false,
            calls_stand_still: false,
            draining: false,
            idle_since: Instant::now(),
        };
        Self(Arc::new(Inner { model, dead_after, state: Mutex::new(state) }))
    }

    /// Records that the handler is loaded and warmed up.
    pub(crate) fn loaded(&self, fingerprint: Option<Fingerprint>, revision: Option<Revision>) {
        self.change(|state| {
            state.loaded = true;
            state.fingerprint = fingerprint;
            state.revision = revision;
            state.idle_since = Instant::now();
        });
    }

    /// Records that the worker consumes, or has stopped to.
    pub(crate) fn consuming(&self, consuming: bool) {
        self.change(|state| {
            let served = state.serves();
            state.consuming = consuming;
            state.idle(served);
        });
    }

    /// Records that replies can be published, or cannot.
    pub(crate) fn publishing(&self, publishing: bool) {
        self.change(|state| {
            let served = state.serves();
            state.publishing = publishing;
            state.idle(served);
        });
    }

    /// Records the handler's own report.
    pub(crate) fn handler(&self, ok: bool) {
        self.change(|state| state.handler_failed = !ok);
    }

    /// Records that the handler's calls make progress, or stand still.
    pub(crate) fn calls(&self, ok: bool) {
        self.change(|state| state.calls_stand_still = !ok);
    }

    pub(crate) fn calls_stand_still(&self) -> bool {
        self.0.state.lock().calls_stand_still
    }

    /// Records that the worker drains: it takes nothing new and exits.
    pub(crate) fn draining(&self) {
        self.change(|state| state.draining = true);
    }

    pub(crate) fn report(&self) -> Report {
        let state = self.0.state.lock();
        let (loaded, consuming, draining) = (state.loaded, state.consuming, state.draining);
        let (handler_ok, calls_ok) = (!state.handler_failed, !state.calls_stand_still);
        let lately = state.serves() || state.idle_since.elapsed() < self.0.dead_after;
        Report {
            alive: !loaded || draining || (handler_ok && calls_ok && lately),
            ready: loaded && state.serves() && handler_ok && calls_ok && !draining,
            loaded,
            consuming,
            publishing: state.publishing,
            handler_ok,
            calls_ok,
            draining,
            model: self.0.model.clone(),
            fingerprint: state.fingerprint,
            revision: state.revision.clone(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.state.lock());
    }
}

impl State {
    /// Returns true while the worker takes requests and can answer them.
    fn serves(&self) -> bool {
        self.consuming && self.publishing
    }

    /// Sets the time since which the worker takes nothing, if it took requests until now.
    fn idle(&mut self, served: bool) {
        if served && !self.serves() {
            self.idle_since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::Health;

    fn health() -> Health {
        let health = Health::new("tale-7m".parse().unwrap(), Duration::from_secs(60));
        health.publishing(true);
        health
    }

    #[track_caller]
    fn check(health: &Health, alive: bool, ready: bool) {
        let report = health.report();
        assert_eq!((report.alive, report.ready), (alive, ready), "{report:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn loading_is_alive_for_as_long_as_it_takes_and_not_ready() {
        let health = health();
        sleep(Duration::from_secs(3600)).await;
        check(&health, true, false);
        health.loaded(None, None);
        check(&health, true, false);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_is_ready_while_it_takes_requests() {
        let health = health();
        health.loaded(None, None);
        check(&health, true, false);
        health.consuming(true);
        sleep(Duration::from_secs(3600)).await;
        check(&health, true, true);
        health.consuming(false);
        check(&health, true, false);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_takes_nothing_for_too_long_is_dead_until_it_does_again() {
        let health = health();
        health.loaded(None, None);
        sleep(Duration::from_secs(59)).await;
        health.consuming(true);
        sleep(Duration::from_secs(100)).await;
        health.consuming(false);
        health.consuming(false);
        sleep(Duration::from_secs(59)).await;
        check(&health, true, false);
        health.consuming(false);
        sleep(Duration::from_secs(1)).await;
        check(&health, false, false);
        health.consuming(true);
        check(&health, true, true);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_cannot_answer_is_not_ready_and_dead_if_that_lasts() {
        let health = health();
        health.loaded(None, None);
        health.consuming(true);
        health.publishing(false);
        check(&health, true, false);
        sleep(Duration::from_secs(59)).await;
        health.consuming(false);
        health.consuming(true);
        check(&health, true, false);
        sleep(Duration::from_secs(1)).await;
        check(&health, false, false);
        health.publishing(true);
        check(&health, true, true);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_failed_is_neither() {
        let health = health();
        health.loaded(None, None);
        health.consuming(true);
        health.handler(false);
        check(&health, false, false);
        health.handler(true);
        check(&health, true, true);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_whose_calls_stand_still_is_neither() {
        let health = health();
        health.loaded(None, None);
        health.consuming(true);
        health.calls(false);
        check(&health, false, false);
        health.calls(true);
        check(&health, true, true);
    }

    #[tokio::test(start_paused = true)]
    async fn draining_is_alive_and_not_ready() {
        let health = health();
        health.loaded(None, None);
        health.consuming(true);
        health.draining();
        check(&health, true, false);
        health.consuming(false);
        sleep(Duration::from_secs(3600)).await;
        check(&health, true, false);
    }
}
