//! Registry of jobs in this worker: running jobs with their deliveries and control channels, ended
//! jobs, and cancels that came before their request.

mod bounded;

use std::collections::{HashMap, VecDeque};

use nsbridge_crypto::JobKey;
use nsbridge_protocol::{AttemptNo, Priority, RequestId, TraceParent};
use nsbridge_queue::Delivery;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use bounded::Bounded;

/// Maximum number of requests whose early cancels are kept. These cancels are not verified, so an
/// attacker may fill the set. Genuine ones are lost then, and their clients repeat them.
const WAITING_CANCELS: usize = 1024;

/// Maximum number of control frames that wait for one job.
const CONTROL_BUFFER: usize = 8;

/// Identity of a job: the copy of a request, the key that sealed it, and its reply queue.
/// Deliveries with equal identities are one job.
///
/// Anyone who sees a message can read its request id and salt and write them into another message.
/// Only the commitment binds them to a key. `reply_to` is not sealed: a copy with a forged one is a
/// job of its own, and its end does not affect the genuine one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JobIdentity {
    pub(crate) key: JobKey,
    pub(crate) commitment: [u8; 32],
    pub(crate) reply_to: String,
}

/// Sealed control frame on its way to the job that can open it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SealedControl {
    pub(crate) frame: Vec<u8>,
    /// Span of the previous attempt, if the client sent it.
    pub(crate) before: Option<TraceParent>,
}

/// Delivery with a token for the loss of its channel.
#[derive(Debug)]
pub(crate) struct OwnedDelivery {
    pub(crate) delivery: Delivery,
    /// Class of the queue that it came from. Copies of it go to the queues of this class.
    pub(crate) priority: Priority,
    /// Canceled when the delivery's channel is gone. The broker then redelivers the copy.
    pub(crate) gone: CancellationToken,
    /// Share of a bulk subscription's prefetch, dropped after the settlement.
    pub(crate) _credit: Option<Credit>,
}

impl OwnedDelivery {
    /// Returns true while the channel of the delivery is open, so that it can be settled.
    pub(crate) fn is_held(&self) -> bool {
        !self.gone.is_cancelled()
    }
}

/// Share of one unsettled delivery in the prefetch of its subscription.
#[derive(Debug)]
pub(crate) struct Credit(watch::Sender<usize>);

impl Credit {
    /// Counts a delivery in `unsettled` until the returned value is dropped.
    pub(crate) fn of(unsettled: &watch::Sender<usize>) -> Self {
        unsettled.send_modify(|count| *count += 1);
        Self(unsettled.clone())
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Running jobs, finished jobs, and cancels that came before their request.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: HashMap<JobIdentity, RunEntry>,
    done: Bounded<JobIdentity>,
    cancels: HashMap<RequestId, Vec<SealedControl>>,
    cancel_order: VecDeque<RequestId>,
}

/// Entry of a running job.
#[derive(Debug)]
struct RunEntry {
    /// Deliveries that the run answers: usually one. An orphan has lost all of its deliveries.
    deliveries: Vec<OwnedDelivery>,
    /// Highest attempt number of these deliveries; sent again with each delivery.
    attempt: watch::Sender<AttemptNo>,
    controls: mpsc::Sender<SealedControl>,
    evicted: CancellationToken,
    /// True for an orphan that has to stop: it adopts no delivery any more.
    retiring: bool,
    /// Canceled when the run is over.
    left: CancellationToken,
}

impl RunEntry {
    fn is_held(&self) -> bool {
        self.deliveries.iter().any(OwnedDelivery::is_held)
    }
}

/// Treatment of a delivery of a job.
#[derive(Debug)]
pub(crate) enum Registration<'a> {
    /// The job does not run here: run it, and receive its control frames.
    New(Running<'a>, mpsc::Receiver<SealedControl>),
    /// The job runs here under another delivery, and this is a copy of the same bytes.
    Duplicate(OwnedDelivery),
    /// The job ran on here without its delivery, and has adopted this one.
    Adopted,
    /// The job runs here and is stopping. The token is canceled when that run is over.
    Retiring(OwnedDelivery, CancellationToken),
    /// The job has ended here: its last frame was confirmed, or no client waits for it any more.
    Done(OwnedDelivery),
}

impl InFlight {
    /// Registers a delivery of a job (rule R6).
    ///
    /// A redelivered copy that comes while its job runs is the delivery that the run has lost, even
    /// if the loss has not been noticed here yet.
    pub(crate) fn register(
        &self,
        job: &JobIdentity,
        owned: OwnedDelivery,
        attempt: AttemptNo,
    ) -> Registration<'_> {
        let mut state = self.0.lock();
        if state.done.contains(job) {
            return Registration::Done(owned);
        }
        if let Some(run) = state.running.get_mut(job) {
            return match run {
                run if run.retiring => Registration::Retiring(owned, run.left.clone()),
                run if run.is_held() && !owned.delivery.redelivered => {
                    Registration::Duplicate(owned)
                }
                run => {
                    run.deliveries.push(owned);
                    // A late eviction must not apply to the run's next loss.
                    run.evicted = CancellationToken::new();
                    run.attempt.send_modify(|known| *known = attempt.max(*known));
                    Registration::Adopted
                }
            };
        }
        let (sender, controls) = mpsc::channel(CONTROL_BUFFER);
        for early in state.cancels.remove(&job.key.id).unwrap_or_default() {
            let _ = sender.try_send(early);
        }
        let left = CancellationToken::new();
        let run = RunEntry {
            deliveries: vec![owned],
            attempt: watch::Sender::new(attempt),
            controls: sender,
            evicted: CancellationToken::new(),
            retiring: false,
            left: left.clone(),
        };
        let running = Running {
            in_flight: self,
            job: job.clone(),
            attempt: run.attempt.subscribe(),
            ended: false,
            _left: left.drop_guard(),
        };
        state.running.insert(job.clone(), run);
        Registration::New(running, controls)
    }

    /// Returns true if the job runs here or is done.
    pub(crate) fn knows(&self, job: &JobIdentity) -> bool {
        let state = self.0.lock();
        state.done.contains(job) || state.running.contains_key(job)
    }

    /// Notifies one orphan that its slot is needed.
    pub(crate) fn evict(&self) {
        let state = self.0.lock();
        let orphan =
            |run: &&RunEntry| !run.retiring && !run.is_held() && !run.evicted.is_cancelled();
        if let Some(orphan) = state.running.values().find(orphan) {
            orphan.evicted.cancel();
        }
    }

    /// Hands a control frame to all jobs of this request. If there is none yet and `keep` is set,
    /// the frame is kept for it.
    pub(crate) fn deliver(&self, request: RequestId, control: &SealedControl, keep: bool) {
        let mut state = self.0.lock();
        let mut found = false;
        for (_, run) in state.running.iter().filter(|(job, _)| job.key.id == request) {
            found = true;
            // A full channel already holds frames of the same meaning.
            let _ = run.controls.try_send(control.clone());
        }
        if !found && keep {
            state.keep_cancel(request, control.clone());
        }
    }
}

impl State {
    fn keep_cancel(&mut self, request: RequestId, control: SealedControl) {
        let waiting = self.cancels.entry(request).or_default();
        if waiting.is_empty() {
            self.cancel_order.push_back(request);
        }
        if waiting.len() < CONTROL_BUFFER {
            waiting.push(control);
        }
        while self.cancel_order.len() > WAITING_CANCELS {
            if let Some(oldest) = self.cancel_order.pop_front() {
                self.cancels.remove(&oldest);
            }
        }
    }
}

/// Registration of a running job. Dropping it removes the job.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    in_flight: &'a InFlight,
    job: JobIdentity,
    attempt: watch::Receiver<AttemptNo>,
    /// True if the job was removed already. Another run of it may be registered by now.
    ended: bool,
    /// Dropped after the job was removed, so that a waiting task finds it gone.
    _left: DropGuard,
}

impl Running<'_> {
    /// Returns a receiver of the attempt number of the job's latest delivery. Each adoption sends
    /// it again.
    pub(crate) fn attempt(&self) -> watch::Receiver<AttemptNo> {
        self.attempt.clone()
    }

    /// Returns true if a delivery of the job is held.
    pub(crate) fn is_held(&self) -> bool {
        self.in_flight.0.lock().running.get(&self.job).is_some_and(RunEntry::is_held)
    }

    /// Waits until no delivery of the job is held.
    pub(crate) async fn orphaned(&self) {
        loop {
            let owned = {
                let state = self.in_flight.0.lock();
                let deliveries = state.running.get(&self.job).map(|run| run.deliveries.iter());
                let mut held = deliveries.into_iter().flatten().filter(|owned| owned.is_held());
                held.next().map(|owned| owned.gone.clone())
            };
            let Some(gone) = owned else { return };
            gone.cancelled().await;
        }
    }

    /// Waits until a delivery of the job is held again.
    pub(crate) async fn adopted(&self) {
        let mut told = self.attempt.clone();
        loop {
            told.mark_unchanged();
            if self.is_held() {
                return;
            }
            // The sender lives as long as this registration.
            let _ = told.changed().await;
        }
    }

    /// Waits until another delivery needs the slot.
    pub(crate) async fn evicted(&self) {
        let token = self.in_flight.0.lock().running.get(&self.job).map(|run| run.evicted.clone());
        if let Some(token) = token {
            token.cancelled().await;
        }
    }

    /// Ends adoption, unless the run holds a delivery. Returns true if adoption has
    /// ended.
    pub(crate) fn retire(&self) -> bool {
        let mut state = self.in_flight.0.lock();
        let Some(run) = state.running.get_mut(&self.job) else { return true };
        run.retiring = !run.is_held();
        run.retiring
    }

    /// Ends the run and returns its deliveries for settlement. With `done` the job is remembered as
    /// ended: its last frame was confirmed, or no client waits for it any more.
    pub(crate) fn end(mut self, done: bool) -> Vec<OwnedDelivery> {
        let mut state = self.in_flight.0.lock();
        if done {
            state.done.insert(self.job.clone());
        }
        self.ended = true;
        state.running.remove(&self.job).map(|run| run.deliveries).unwrap_or_default()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let run = self.in_flight.0.lock().running.remove(&self.job);
            // Dropped deliveries are requeued, outside of the lock.
            drop(run);
        }
    }
}

#[cfg(test)]
mod tests;
