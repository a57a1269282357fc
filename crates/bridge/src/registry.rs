//! What this worker knows of requests beside the deliveries it holds.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nsbridge_crypto::JobKey;
use nsbridge_protocol::RequestId;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Jobs remembered after their end.
const REMEMBERED: usize = 4096;

/// Cancels remembered for requests that are not here yet. Nobody has verified them, so an
/// attacker may fill the set; then true ones are lost, and the client repeats its own.
const WAITING_CANCELS: usize = 1024;

/// Control frames that may wait for one job.
const MAILBOX: usize = 8;

/// A sealed control frame, on its way to the job that can open it.
pub(crate) type Mail = Vec<u8>;

/// The jobs that run here, those that are done, and cancels that came before their request.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: HashMap<JobKey, Run>,
    done: Bounded<JobKey>,
    cancels: HashMap<RequestId, Vec<Mail>>,
    cancel_order: VecDeque<RequestId>,
}

#[derive(Debug)]
struct Run {
    mail: mpsc::Sender<Mail>,
    /// Cancelled when the run is over.
    left: CancellationToken,
}

/// How a delivery of a job is to be treated.
#[derive(Debug)]
pub(crate) enum Admission<'a> {
    /// Nobody runs it here: run it, and read its mail.
    New(Running<'a>),
    /// It runs here already. The token is cancelled when that run is over.
    Runs(CancellationToken),
    /// Its last frame was confirmed before.
    Done,
}

impl Registry {
    /// Registers a job, unless it runs or is done.
    pub(crate) fn admit(&self, job: JobKey) -> Admission<'_> {
        let mut state = self.state();
        if state.done.contains(&job) {
            return Admission::Done;
        }
        if let Some(run) = state.running.get(&job) {
            return Admission::Runs(run.left.clone());
        }
        let (sender, mail) = mpsc::channel(MAILBOX);
        for early in state.cancels.remove(&job.id).unwrap_or_default() {
            let _ = sender.try_send(early);
        }
        let left = CancellationToken::new();
        state.running.insert(job, Run { mail: sender, left: left.clone() });
        Admission::New(Running { registry: self, job, mail, _left: left.drop_guard() })
    }

    /// Hands a control frame to the jobs it may be for; `keep` it if none is here yet.
    pub(crate) fn post(&self, request: RequestId, mail: &Mail, keep: bool) {
        let mut state = self.state();
        let mut found = false;
        for (_, run) in state.running.iter().filter(|(job, _)| job.id == request) {
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
    job: JobKey,
    /// Control frames that claim to be about the job.
    pub(crate) mail: mpsc::Receiver<Mail>,
    /// Dropped after the job was taken off the list, so that whoever waits finds it gone.
    _left: DropGuard,
}

impl Running<'_> {
    /// Remembers that the job's last frame was confirmed.
    pub(crate) fn done(&self) {
        self.registry.state().done.insert(self.job);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.registry.state().running.remove(&self.job);
    }
}

/// A set that forgets its oldest members.
#[derive(Debug)]
struct Bounded<T> {
    members: HashSet<T>,
    order: VecDeque<T>,
}

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self { members: HashSet::new(), order: VecDeque::new() }
    }
}

impl<T: Copy + Eq + Hash> Bounded<T> {
    fn contains(&self, member: &T) -> bool {
        self.members.contains(member)
    }

    fn insert(&mut self, member: T) {
        if self.members.insert(member) {
            self.order.push_back(member);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.members.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_crypto::{JobKey, Salt};
    use nsbridge_protocol::RequestId;

    use super::{Admission, Registry, WAITING_CANCELS};

    fn job(n: u16) -> JobKey {
        let mut id = [0; 16];
        id[..2].copy_from_slice(&n.to_be_bytes());
        JobKey { id: RequestId::from_bytes(id), salt: Salt([0; 32]) }
    }

    #[test]
    fn a_job_runs_once_and_is_remembered_when_done() {
        let registry = Registry::default();
        let Admission::New(running) = registry.admit(job(1)) else { panic!() };
        let Admission::Runs(left) = registry.admit(job(1)) else { panic!() };
        assert!(!left.is_cancelled());
        drop(running);
        assert!(left.is_cancelled());
        let Admission::New(running) = registry.admit(job(1)) else { panic!() };
        running.done();
        drop(running);
        assert!(matches!(registry.admit(job(1)), Admission::Done));
    }

    #[test]
    fn a_cancel_that_comes_first_waits_for_its_request() {
        let registry = Registry::default();
        registry.post(job(1).id, &b"cancel".to_vec(), true);
        registry.post(job(2).id, &b"resume".to_vec(), false);
        let Admission::New(mut running) = registry.admit(job(1)) else { panic!() };
        assert_eq!(running.mail.try_recv().unwrap(), b"cancel");
        let Admission::New(mut running) = registry.admit(job(2)) else { panic!() };
        assert!(running.mail.try_recv().is_err());
    }

    #[test]
    fn unverified_cancels_are_bounded() {
        let registry = Registry::default();
        for n in 0..=WAITING_CANCELS as u16 {
            for _ in 0..100 {
                registry.post(job(n).id, &vec![0; 10], true);
            }
        }
        let state = registry.state();
        assert_eq!(state.cancels.len(), WAITING_CANCELS);
        assert!(!state.cancels.contains_key(&job(0).id));
        assert!(state.cancels.values().all(|mail| mail.len() <= super::MAILBOX));
    }
}
