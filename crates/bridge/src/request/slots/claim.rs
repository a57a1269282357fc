//! Claim of one delivery to a slot: its class, and the signal that ends its hold on the slot.

use nsbridge_protocol::Priority;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Claim of one delivery to a slot. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) priority: Priority,
    /// Canceled when the run must give up its slot.
    preempted: CancellationToken,
    /// Canceled when the run has sent a piece that its client did not have.
    progressed: CancellationToken,
    /// Number of the bulk run, once it has its slot.
    run: watch::Sender<Option<u64>>,
}

impl Claim {
    pub(crate) fn new(priority: Priority) -> Self {
        Self {
            priority,
            preempted: CancellationToken::new(),
            progressed: CancellationToken::new(),
            run: watch::Sender::new(None),
        }
    }

    /// Records that the run has sent a piece that its client did not have.
    pub(crate) fn progress(&self) {
        self.progressed.cancel();
    }

    /// Records that the bulk run with this number has its slot.
    pub(super) fn begin(&self, run: u64) {
        self.run.send_replace(Some(run));
    }

    /// Waits until the bulk run has its slot, and returns its number.
    pub(super) async fn begun(&self) -> u64 {
        let mut run = self.run.subscribe();
        loop {
            if let Some(run) = *run.borrow_and_update() {
                return run;
            }
            // The sender belongs to `self`, so the wait cannot fail.
            let _ = run.changed().await;
        }
    }

    /// Waits until the run has sent a piece that its client did not have.
    pub(super) async fn progressed(&self) {
        self.progressed.cancelled().await;
    }

    /// Returns the signal that the run must give up its slot.
    pub(super) fn signal(&self) -> CancellationToken {
        self.preempted.clone()
    }
}
