//! Events that stop a run: its deadline, a drain, a lost slot, and a lost delivery.

use std::future::pending;
use std::time::Duration;

use nsbridge_handler::Stop;
use nsbridge_handler::transcript::Reader;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Run;
use crate::observability::metrics::OrphanEnd;
use crate::request::admission;
use crate::request::context::WorkerContext;
use crate::request::reply_stream::Undeliverable;

impl Run<'_> {
    /// Stops the run at its deadline, in a drain, when an interactive request needs its slot, or when
    /// it has lost its delivery. Sending may go on for a while after the stop; then `overdue` is
    /// canceled. Returns only if the handler has failed and the run is not waited for any more.
    pub(super) async fn watch(&self, overdue: &CancellationToken) -> Undeliverable {
        let (worker, reader) = (self.worker, self.reader);
        let (stop, margin) = tokio::select! {
            () = sleep(admission::remaining(self.request.deadline)) => (Stop::Deadline, worker.timing.send_margin),
            margin = must_move(worker, reader) => (Stop::HandOff, margin),
            () = self.preempted() => (Stop::HandOff, worker.timing.send_margin),
            // The client does not need these frames: the worker with the delivery sends its own.
            () = self.forsaken() => (Stop::HandOff, Duration::ZERO),
        };
        reader.stop(stop);
        let late = async {
            // A call that ignores the stop is given up, and its client gets its end after that. The
            // sender belongs to this run, so the wait cannot fail.
            let _ = self.calling.subscribe().wait_for(|calling| !calling).await;
            sleep(margin).await;
            overdue.cancel();
            pending().await
        };
        let given_up = async {
            worker.unwell.cancelled().await;
            sleep(worker.timing.failed_call_limit).await;
        };
        tokio::select! {
            never = late => never,
            () = given_up => Undeliverable::Overdue,
        }
    }

    /// Waits until the slot of a bulk request is needed by an interactive one (rule R13).
    async fn preempted(&self) {
        let Self { worker, request, reader, .. } = self;
        worker.slots.preempted(self.claim, request.attempt).await;
        let (id, pieces) = (request.job_key.id, reader.len());
        tracing::info!(request = %id, pieces, "a bulk request gives up its slot");
        worker.observability.metrics.preempted();
    }

    /// Waits until the run has lost its delivery for good (rule R9).
    async fn forsaken(&self) {
        let Self { worker, request, running, .. } = self;
        loop {
            running.orphaned().await;
            tracing::warn!(request = %request.job_key.id, "a running job has lost its delivery");
            let orphan = worker.observability.metrics.orphaned();
            let withdrawn = async {
                self.record.withdraw().await;
                pending().await
            };
            let end = tokio::select! {
                () = running.adopted() => OrphanEnd::Adopted,
                () = adoption_time(worker) => OrphanEnd::Expired,
                () = running.evicted() => OrphanEnd::Evicted,
                _ = worker.drain.begun() => OrphanEnd::Drained,
                never = withdrawn => never,
            };
            // A copy may have been adopted at the last moment.
            let left = end != OrphanEnd::Adopted && running.retire();
            orphan.ended(if left { end } else { OrphanEnd::Adopted });
            if left {
                tracing::info!(request = %request.job_key.id, "a job without a delivery was stopped");
                return;
            }
            tokio::select! {
                () = self.record.enter() => {}
                () = running.orphaned() => {}
            }
        }
    }
}

/// Waits until a draining worker must hand the job over. Returns the time limit of the hand-over.
async fn must_move(worker: &WorkerContext, reader: &Reader) -> Duration {
    let moment = worker.drain.begun().await;
    // A job that cannot end within the grace period has to move anyway, so it moves at once.
    let left = moment.saturating_duration_since(Instant::now());
    if reader.expected_to_take().is_none_or(|needed| needed <= left) {
        worker.drain.over().await;
    }
    // While the broker blocks publishers, `moved` cannot be sent.
    if worker.publish.is_blocked() { Duration::ZERO } else { worker.timing.send_margin }
}

/// Waits for as long as the copy of a job that was just orphaned may come back here.
async fn adoption_time(worker: &WorkerContext) {
    let lost = Instant::now();
    let returned = async {
        let mut subscribed = worker.consuming.since();
        loop {
            let since = *subscribed.borrow_and_update();
            let window = async {
                match since {
                    Some(since) => sleep_until(since.max(lost) + worker.timing.adopt_window).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = window => return,
                _ = subscribed.changed() => {}
            }
        }
    };
    tokio::select! {
        () = returned => {}
        () = sleep_until(lost + worker.timing.max_orphan_time) => {}
    }
}
