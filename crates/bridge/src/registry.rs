//! What this worker knows of requests beside the deliveries it takes: who runs, who holds them,
//! what is done, and cancels that came before their request.

mod bounded;

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nsbridge_crypto::JobKey;
use nsbridge_protocol::{AttemptNo, RequestId, TraceParent};
use nsbridge_queue::Delivery;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use bounded::Bounded;

/// Cancels remembered for requests that are not here yet. Nobody has verified them, so an
/// attacker may fill the set; then true ones are lost, and the client repeats its own.
const WAITING_CANCELS: usize = 1024;

/// Control frames that may wait for one job.
const MAILBOX: usize = 8;

/// Identity of a job: the copy of a request, the key it was sealed with, and the queue its reply
/// goes to. Deliveries with equal ones are one job.
///
/// Request id and salt can be read by anyone who sees the message, and written into another; only
/// the commitment binds them to a key. `reply_to` is not sealed: a copy with a forged one is a job of
/// its own, and its end says nothing of the genuine one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    pub(crate) key: JobKey,
    pub(crate) commitment: [u8; 32],
    pub(crate) reply_to: String,
}

/// A sealed control frame, on its way to the job that can open it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mail {
    pub(crate) frame: Vec<u8>,
    /// The span of the attempt before, if the client told.
    pub(crate) before: Option<TraceParent>,
}

/// A delivery, and whether it is still ours.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) delivery: Delivery,
    /// Cancelled when the channel it came on is gone: the broker hands the copy out again then.
    pub(crate) gone: CancellationToken,
}

impl Held {
    pub(crate) fn is_ours(&self) -> bool {
        !self.gone.is_cancelled()
    }
}

/// The jobs that run here, those that are done, and cancels that came before their request.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: HashMap<Job, Run>,
    done: Bounded<Job>,
    cancels: HashMap<RequestId, Vec<Mail>>,
    cancel_order: VecDeque<RequestId>,
}

#[derive(Debug)]
struct Run {
    /// What the run was given for: usually one delivery, none for an orphan.
    holds: Vec<Held>,
    /// The highest attempt among them. Told anew with each delivery.
    attempt: watch::Sender<AttemptNo>,
    mail: mpsc::Sender<Mail>,
    evicted: CancellationToken,
    /// An orphan that was told to stop: it takes no delivery any more.
    leaving: bool,
    /// Cancelled when the run is over.
    left: CancellationToken,
}

impl Run {
    fn is_held(&self) -> bool {
        self.holds.iter().any(Held::is_ours)
    }
}

/// How a delivery of a job is to be treated.
#[derive(Debug)]
pub(crate) enum Admission<'a> {
    /// Nobody runs it here: run it, and read its mail.
    New(Running<'a>, mpsc::Receiver<Mail>),
    /// It runs here under a delivery of its own, and this is another copy of the same bytes.
    Duplicate(Held),
    /// It ran on here without its delivery, and has this one now.
    Adopted,
    /// It runs here and is told to stop. The token is cancelled when that run is over.
    Leaving(Held, CancellationToken),
    /// Its last frame was confirmed before.
    Done(Held),
}

impl Registry {
    /// Registers a delivery of a job (rule R6).
    ///
    /// A copy that was handed out before and comes back while its run goes on is the one that the
    /// run has lost, even if the loss has not been noticed here yet.
    pub(crate) fn admit(&self, job: &Job, held: Held, attempt: AttemptNo) -> Admission<'_> {
        let mut state = self.state();
        if state.done.contains(job) {
            return Admission::Done(held);
        }
        if let Some(run) = state.running.get_mut(job) {
            return match run {
                run if run.leaving => Admission::Leaving(held, run.left.clone()),
                run if run.is_held() && !held.delivery.redelivered => Admission::Duplicate(held),
                run => {
                    run.holds.push(held);
                    // An eviction that came too late is none for its next loss.
                    run.evicted = CancellationToken::new();
                    run.attempt.send_modify(|known| *known = attempt.max(*known));
                    Admission::Adopted
                }
            };
        }
        let (sender, mail) = mpsc::channel(MAILBOX);
        for early in state.cancels.remove(&job.key.id).unwrap_or_default() {
            let _ = sender.try_send(early);
        }
        let left = CancellationToken::new();
        let run = Run {
            holds: vec![held],
            attempt: watch::Sender::new(attempt),
            mail: sender,
            evicted: CancellationToken::new(),
            leaving: false,
            left: left.clone(),
        };
        let running = Running {
            registry: self,
            job: job.clone(),
            attempt: run.attempt.subscribe(),
            ended: false,
            _left: left.drop_guard(),
        };
        state.running.insert(job.clone(), run);
        Admission::New(running, mail)
    }

    /// Whether the job runs here or is done.
    pub(crate) fn knows(&self, job: &Job) -> bool {
        let state = self.state();
        state.done.contains(job) || state.running.contains_key(job)
    }

    /// Tells one orphan that its place is needed.
    pub(crate) fn evict(&self) {
        let state = self.state();
        let orphan = |run: &&Run| !run.leaving && !run.is_held() && !run.evicted.is_cancelled();
        if let Some(orphan) = state.running.values().find(orphan) {
            orphan.evicted.cancel();
        }
    }

    /// Hands a control frame to the jobs it may be for; `keep` it if none is here yet.
    pub(crate) fn post(&self, request: RequestId, mail: &Mail, keep: bool) {
        let mut state = self.state();
        let mut found = false;
        for (_, run) in state.running.iter().filter(|(job, _)| job.key.id == request) {
            found = true;
            // A full mailbox holds frames that say the same.
            let _ = run.mail.try_send(mail.clone());
        }
        if !found && keep {
            state.keep_cancel(request, mail.clone());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep_cancel(&mut self, request: RequestId, mail: Mail) {
        let waiting = self.cancels.entry(request).or_default();
        if waiting.is_empty() {
            self.cancel_order.push_back(request);
        }
        if waiting.len() < MAILBOX {
            waiting.push(mail);
        }
        while self.cancel_order.len() > WAITING_CANCELS {
            if let Some(oldest) = self.cancel_order.pop_front() {
                self.cancels.remove(&oldest);
            }
        }
    }
}

/// A job that runs here, for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    registry: &'a Registry,
    job: Job,
    attempt: watch::Receiver<AttemptNo>,
    /// It was taken off the list; another run of the job may stand there now.
    ended: bool,
    /// Dropped after the job was taken off the list, so that whoever waits finds it gone.
    _left: DropGuard,
}

impl Running<'_> {
    /// The attempt that the job's latest delivery asks for; told anew when it is adopted.
    pub(crate) fn attempt(&self) -> watch::Receiver<AttemptNo> {
        self.attempt.clone()
    }

    /// Whether a delivery of it is ours.
    pub(crate) fn is_held(&self) -> bool {
        self.registry.state().running.get(&self.job).is_some_and(Run::is_held)
    }

    /// Waits until no delivery of it is ours.
    pub(crate) async fn orphaned(&self) {
        loop {
            let held = {
                let state = self.registry.state();
                let holds = state.running.get(&self.job).map(|run| run.holds.iter());
                let mut ours = holds.into_iter().flatten().filter(|held| held.is_ours());
                ours.next().map(|held| held.gone.clone())
            };
            let Some(gone) = held else { return };
            gone.cancelled().await;
        }
    }

    /// Waits until a delivery of it is ours again.
    pub(crate) async fn adopted(&self) {
        let mut told = self.attempt.clone();
        loop {
            told.mark_unchanged();
            if self.is_held() {
                return;
            }
            // The sender lives as long as we do.
            let _ = told.changed().await;
        }
    }

    /// Waits until somebody needs its place.
    pub(crate) async fn evicted(&self) {
        let token = self.registry.state().running.get(&self.job).map(|run| run.evicted.clone());
        if let Some(token) = token {
            token.cancelled().await;
        }
    }

    /// Takes no delivery any more, unless it has one now; tells which.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.registry.state();
        let Some(run) = state.running.get_mut(&self.job) else { return true };
        run.leaving = !run.is_held();
        run.leaving
    }

    /// Ends the run and gives what is to be settled; `done` if the last frame was confirmed.
    pub(crate) fn end(mut self, done: bool) -> Vec<Held> {
        let mut state = self.registry.state();
        if done {
            state.done.insert(self.job.clone());
        }
        self.ended = true;
        state.running.remove(&self.job).map(|run| run.holds).unwrap_or_default()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let run = self.registry.state().running.remove(&self.job);
            // Deliveries go back to their queue, outside of the lock.
            drop(run);
        }
    }
}

#[cfg(test)]
mod tests;
