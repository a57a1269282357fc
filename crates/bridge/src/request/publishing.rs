//! State of a worker's publishing side: a worker that can publish no reply must keep no request.

use tokio::sync::{Notify, watch};

use crate::drain::Drain;

/// State of the publishing side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Replies can be published.
    Works,
    /// No reply can be published. Deliveries may still arrive.
    Fails,
    /// No reply can be published, and no delivery arrives. A delivery that is given back now does
    /// not return to this worker.
    FailsWithoutIntake,
}

/// State of the publishing side, which the probe sets. It fails until the first probe succeeds, so that
/// no request is taken before its reply can be published.
///
/// A broker that blocks publishers counts as working: it takes the frames later.
#[derive(Debug)]
pub(crate) struct Publishing {
    state: watch::Sender<State>,
    doubts: Notify,
    drain: Drain,
}

impl Publishing {
    pub(crate) fn new(drain: Drain) -> Self {
        Self { state: watch::Sender::new(State::Fails), doubts: Notify::new(), drain }
    }

    /// Returns true while replies can be published.
    pub(crate) fn works(&self) -> bool {
        *self.state.borrow() == State::Works
    }

    /// Waits until replies can be published.
    pub(crate) async fn working(&self) {
        self.wait_for(|state| state == State::Works).await;
    }

    /// Waits until [`works`](Self::works) no longer returns `known`.
    pub(crate) async fn changed(&self, known: bool) {
        self.wait_for(|state| (state == State::Works) != known).await;
    }

    /// Waits until a request whose reply cannot be published may go back: the subscription is
    /// paused, or a drain has ended it.
    pub(crate) async fn given_up(&self) {
        let without_subscription = async {
            self.drain.begun().await;
            self.changed(true).await;
        };
        tokio::select! {
            () = self.wait_for(|state| state == State::FailsWithoutIntake) => {}
            () = without_subscription => {}
        }
    }

    async fn wait_for(&self, is_reached: impl Fn(State) -> bool) {
        // The sender belongs to `self`, so the wait cannot fail.
        let _ = self.state.subscribe().wait_for(|state| is_reached(*state)).await;
    }

    /// Records the result of a probe.
    pub(crate) fn set_works(&self, works: bool) {
        self.state.send_if_modified(|state| {
            let changes = works != (*state == State::Works);
            if changes {
                *state = if works { State::Works } else { State::Fails };
            }
            changes
        });
    }

    /// Records that no delivery arrives. Has no effect while replies can be published.
    pub(crate) fn intake_stopped(&self) {
        self.state.send_if_modified(|state| {
            let changes = *state == State::Fails;
            if changes {
                *state = State::FailsWithoutIntake;
            }
            changes
        });
    }

    /// Reports a channel that could not be opened, or was lost: the next probe is due.
    pub(crate) fn doubt(&self) {
        self.doubts.notify_one();
    }

    /// Waits for a [`doubt`](Self::doubt).
    pub(crate) async fn doubted(&self) {
        self.doubts.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::Publishing;
    use crate::drain::Drain;

    fn publishing() -> (Publishing, Drain) {
        let drain = Drain::new(Duration::from_secs(20));
        (Publishing::new(drain.clone()), drain)
    }

    #[test]
    fn it_fails_until_a_probe_succeeds() {
        let (publishing, _) = publishing();
        assert!(!publishing.works() && publishing.working().now_or_never().is_none());
        publishing.set_works(true);
        assert!(publishing.works() && publishing.working().now_or_never().is_some());
    }

    #[test]
    fn requests_go_back_only_once_none_arrives() {
        let (publishing, _) = publishing();
        publishing.set_works(true);
        publishing.intake_stopped();
        assert!(publishing.given_up().now_or_never().is_none(), "it works");
        publishing.set_works(false);
        assert!(publishing.given_up().now_or_never().is_none(), "a delivery may still arrive");
        publishing.intake_stopped();
        // A further failed probe changes nothing.
        publishing.set_works(false);
        assert!(publishing.given_up().now_or_never().is_some());
        publishing.set_works(true);
        assert!(publishing.given_up().now_or_never().is_none(), "it works again");
    }

    #[test]
    fn a_drain_has_ended_the_subscription() {
        let (publishing, drain) = publishing();
        drain.begin();
        publishing.set_works(true);
        assert!(publishing.given_up().now_or_never().is_none(), "it works");
        publishing.set_works(false);
        assert!(publishing.given_up().now_or_never().is_some());
    }
}
