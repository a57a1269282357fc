//! Permits for calls: as many at once as the handler has slots.
//!
//! The prefetch of interactive requests is the number of slots. Such a delivery therefore finds a
//! free slot, unless bulk requests or orphans hold it or a suspect runs alone. Bulk requests are
//! taken only while slots are free, and give theirs up to interactive requests
//! (docs/decisions/0026-bulk-requests-are-preempted.md).

mod bulk;
mod claim;

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_base::random::random_part;
use nsbridge_protocol::{AttemptNo, Priority};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::drain::Drain;
use crate::request::admission::{AdmittedRequest, remaining};
use crate::request::in_flight::{InFlight, Running};
use crate::timing::Timing;

use bulk::BulkRuns;
pub(crate) use claim::Claim;

/// Number of recorded runs without a return that makes a request a suspect, which runs alone (rule
/// R5). A request that kills its workers, for example by memory, must not take its neighbors along.
const EXCLUSIVE_FROM: u32 = 1;

/// Number of waits without a slot after which a bulk suspect is given back.
const SUSPECT_WAITS: u32 = 8;

/// Number of times that the protection of a bulk run is doubled.
const MOST_DOUBLINGS: u32 = 3;

/// Slots of the worker.
///
/// A suspect begins when nothing else runs, and while one waits the worker takes no deliveries.
/// Deliveries that it already has go first: a suspect delays nothing but other suspects. A bulk
/// request that is a suspect delays no interactive request: the worker goes on to take these, and
/// they preempt it.
#[derive(Debug)]
pub(crate) struct SlotPool {
    count: usize,
    evict_after: Duration,
    shuffle: Duration,
    /// Time limit of a bulk delivery without a slot.
    bulk_wait: Duration,
    /// Time limit of the protection of a bulk run, at its first attempt.
    bulk_protection: Duration,
    state: Mutex<State>,
    /// Notified when a slot may have become free.
    changed: Notify,
    /// True while no deliveries are wanted: from the arrival of a suspect until no suspect is left
    /// and all other calls have ended.
    quiet: watch::Sender<bool>,
    /// Number of slots that no delivery needs; negative if deliveries wait for a slot.
    room: watch::Sender<isize>,
}

#[derive(Debug, Default)]
struct State {
    /// Slots taken by calls that run beside others.
    taken: usize,
    /// Slots held by calls that were given up and have not ended. A suspect does not wait for them.
    lost: usize,
    /// Deliveries without a slot that are not known to be suspects.
    arriving: usize,
    /// Bulk requests among them.
    bulk_arriving: usize,
    /// Interactive requests that wait for a slot beside others.
    waiting: usize,
    /// Bulk requests that run.
    bulk: BulkRuns,
    /// Interactive suspects that wait or run.
    suspects: usize,
    /// Bulk suspects that wait or run.
    bulk_suspects: usize,
    /// True while a suspect runs.
    exclusive: bool,
    /// True while the consumer is paused.
    paused: bool,
}

/// Answer to the request for a slot.
#[derive(Debug)]
pub(crate) enum Slot {
    /// Permit of a slot, which is free again when the permit is dropped.
    Granted(SlotPermit),
    /// The deadline passed first.
    DeadlinePassed,
    /// The delivery was lost, the worker drains, or interactive requests need all slots: requeue the
    /// delivery.
    Requeue,
}

impl SlotPool {
    pub(crate) fn new(count: usize, timing: &Timing) -> Self {
        Self {
            count,
            evict_after: timing.evict_orphan_after,
            shuffle: timing.suspect_shuffle,
            bulk_wait: timing.bulk_wait,
            bulk_protection: timing.bulk_protection,
            state: Mutex::default(),
            changed: Notify::new(),
            quiet: watch::Sender::new(false),
            room: watch::Sender::new(isize::try_from(count).unwrap_or(isize::MAX)),
        }
    }

    /// Registers a delivery. It counts as arriving until the returned value is dropped.
    pub(crate) fn arrive(self: &Arc<Self>, claim: Claim) -> Arrival {
        self.change(|state| state.arrived(&claim, 1));
        Arrival { pool: self.clone(), claim }
    }

    /// Returns a receiver of the number of slots that no delivery needs. It is negative while bulk
    /// requests must leave.
    pub(crate) fn room(&self) -> watch::Receiver<isize> {
        self.room.subscribe()
    }

    /// Waits until a bulk run must give up its slot. A run is protected until it has sent a new
    /// piece, so that each run brings its reply forward, but not for longer than a time that doubles
    /// with each attempt.
    pub(crate) async fn preempted(&self, claim: &Claim, attempt: AttemptNo) {
        let earlier = attempt.0.saturating_sub(1).min(MOST_DOUBLINGS);
        let protection = self.bulk_protection * (1 << earlier);
        let expose = async {
            let run = claim.begun().await;
            tokio::select! {
                () = claim.progressed() => {}
                () = sleep(protection) => {}
            }
            self.change(|state| state.bulk.expose(run));
            pending::<Infallible>().await
        };
        let signal = claim.signal();
        tokio::select! {
            () = signal.cancelled() => {}
            never = expose => match never {},
        }
    }

    /// Returns a receiver that is true while no deliveries are wanted.
    pub(crate) fn quiet(&self) -> watch::Receiver<bool> {
        self.quiet.subscribe()
    }

    /// Records that the consumer was paused or resumed.
    pub(crate) fn paused(&self, paused: bool) {
        self.change(|state| state.paused = paused);
    }

    /// Waits for a slot for a request with this many runs that did not return.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        arrival: Arrival,
        unreturned: u32,
        in_flight: &InFlight,
        drain: &Drain,
        request: &AdmittedRequest,
        running: &Running<'_>,
    ) -> Slot {
        let exclusive = unreturned >= EXCLUSIVE_FROM;
        // A bulk delivery that waits here is kept from workers with free slots. The other bulk runs
        // that leave for a suspect may be protected for a while.
        let bulk = arrival.claim.priority == Priority::Bulk;
        let longest = if exclusive { self.bulk_wait * SUSPECT_WAITS } else { self.bulk_wait };
        if exclusive {
            tracing::info!(request = %request.job_key.id, runs = unreturned, "to run alone");
        }
        let evict = async {
            sleep(self.evict_after).await;
            if !self.state.lock().exclusive {
                in_flight.evict();
            }
            std::future::pending().await
        };
        let permit = async {
            if exclusive { self.exclusive(arrival).await } else { self.shared(arrival).await }
        };
        tokio::select! {
            biased;
            _ = drain.begun() => Slot::Requeue,
            () = running.orphaned() => Slot::Requeue,
            permit = permit => Slot::Granted(permit),
            () = sleep(remaining(request.deadline)) => Slot::DeadlinePassed,
            () = sleep(longest), if bulk => Slot::Requeue,
            never = evict, if !exclusive => never,
        }
    }

    async fn shared(self: &Arc<Self>, arrival: Arrival) -> SlotPermit {
        let holds = match arrival.claim.priority {
            Priority::Bulk => self.bulk(&arrival.claim).await,
            _ => self.interactive().await,
        };
        drop(arrival);
        SlotPermit { pool: self.clone(), holds: Mutex::new(holds) }
    }

    async fn interactive(self: &Arc<Self>) -> Holds {
        let mut waiting = Waiting::of(self);
        let slot = self.when(|state| {
            state.is_free(self.count).then(|| {
                state.taken += 1;
                state.waiting -= 1;
            })
        });
        slot.await;
        waiting.counts = false;
        Holds::Slot
    }

    async fn bulk(&self, claim: &Claim) -> Holds {
        let slot = self.when(|state| {
            // A run that begins now would have to leave at once.
            let wanted = state.waiting > 0 || state.bulk_leaves();
            (!wanted && state.is_free(self.count)).then(|| {
                state.taken += 1;
                state.bulk.begin(false, claim.signal())
            })
        });
        let run = slot.await;
        claim.begin(run);
        Holds::Bulk(run)
    }

    async fn exclusive(self: &Arc<Self>, arrival: Arrival) -> SlotPermit {
        let claim = arrival.claim();
        let bulk = claim.priority == Priority::Bulk;
        let suspect = Suspect::of(self, bulk);
        drop(arrival);
        sleep(random_part(self.shuffle)).await;
        let permit = self.when(|state| {
            let wanted = if bulk { state.suspects == 0 } else { state.paused };
            let free = wanted && !state.exclusive && state.taken == 0 && state.arriving == 0;
            free.then(|| {
                state.exclusive = true;
                bulk.then(|| state.bulk.begin(true, claim.signal()))
            })
        });
        let run = permit.await;
        if let Some(run) = run {
            claim.begin(run);
            // More bulk requests are not wanted now.
            self.change(|_| ());
        }
        let holds = Holds::Exclusive { bulk: run, _suspect: suspect };
        SlotPermit { pool: self.clone(), holds: Mutex::new(holds) }
    }

    /// Retries `change` after each change of the state, until it succeeds.
    async fn when<T>(&self, change: impl Fn(&mut State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the check, so that no notification is missed in between.
            changed.as_mut().enable();
            let done = change(&mut self.state.lock());
            if let Some(done) = done {
                return done;
            }
            changed.await;
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.preempt(self.count);
        let (suspects, empty) = (state.suspects > 0, state.taken + state.arriving == 0);
        // Sent under the lock, so that receivers see changes in their order. A resumed consumer
        // gets its whole prefetch again, so it stays paused until all earlier deliveries are
        // settled.
        self.quiet.send_if_modified(|quiet| {
            let wanted = suspects || (*quiet && !empty);
            std::mem::replace(quiet, wanted) != wanted
        });
        let room = if *self.quiet.borrow() { -1 } else { state.room(self.count) };
        self.room.send_if_modified(|known| std::mem::replace(known, room) != room);
        drop(state);
        self.changed.notify_waiters();
    }
}

impl State {
    /// Returns true if a call may begin beside others.
    fn is_free(&self, count: usize) -> bool {
        !self.exclusive && self.taken + self.lost < count
    }

    /// Returns the number of slots that no delivery needs.
    fn room(&self, count: usize) -> isize {
        if self.exclusive || self.bulk_leaves() {
            return -1;
        }
        count.cast_signed() - (self.taken + self.lost + self.arriving).cast_signed()
    }

    /// Returns the number of suspects of a class.
    fn suspects_of(&mut self, bulk: bool) -> &mut usize {
        if bulk { &mut self.bulk_suspects } else { &mut self.suspects }
    }

    /// Adds `number` to the deliveries that have no slot.
    fn arrived(&mut self, claim: &Claim, number: isize) {
        self.arriving = self.arriving.saturating_add_signed(number);
        if claim.priority == Priority::Bulk {
            self.bulk_arriving = self.bulk_arriving.saturating_add_signed(number);
        }
    }

    /// Returns true if the bulk requests must make room for a suspect. A bulk suspect cannot run
    /// before the interactive requests have ended, so until then the others may go on.
    fn bulk_leaves(&self) -> bool {
        let interactive = self.taken > self.bulk.shared() || self.arriving > self.bulk_arriving;
        self.suspects > 0 || (self.bulk_suspects > 0 && !interactive)
    }

    /// Tells bulk runs to leave: one for each interactive request that waits without a slot, and all
    /// for a suspect.
    fn preempt(&mut self, count: usize) {
        let free = if self.exclusive { 0 } else { count.saturating_sub(self.taken + self.lost) };
        self.bulk.preempt(self.waiting.saturating_sub(free));
        if self.suspects > 0 {
            self.bulk.preempt(usize::MAX);
        } else if self.bulk_leaves() {
            self.bulk.preempt_shared();
        }
    }
}

/// Delivery that has no slot yet.
#[derive(Debug)]
pub(crate) struct Arrival {
    pool: Arc<SlotPool>,
    claim: Claim,
}

impl Arrival {
    /// Returns the claim of the delivery.
    pub(crate) fn claim(&self) -> Claim {
        self.claim.clone()
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.pool.change(|state| state.arrived(&self.claim, -1));
    }
}

/// Interactive request that waits for a slot.
struct Waiting {
    pool: Arc<SlotPool>,
    /// False once the request has its slot.
    counts: bool,
}

impl Waiting {
    fn of(pool: &Arc<SlotPool>) -> Self {
        pool.change(|state| state.waiting += 1);
        Self { pool: pool.clone(), counts: true }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.counts {
            self.pool.change(|state| state.waiting -= 1);
        }
    }
}

/// Suspect that waits or runs.
#[derive(Debug)]
struct Suspect {
    pool: Arc<SlotPool>,
    bulk: bool,
}

impl Suspect {
    fn of(pool: &Arc<SlotPool>, bulk: bool) -> Self {
        pool.change(|state| *state.suspects_of(bulk) += 1);
        Self { pool: pool.clone(), bulk }
    }
}

impl Drop for Suspect {
    fn drop(&mut self) {
        self.pool.change(|state| *state.suspects_of(self.bulk) -= 1);
    }
}

/// Permit for one call. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct SlotPermit {
    pool: Arc<SlotPool>,
    holds: Mutex<Holds>,
}

#[derive(Debug)]
enum Holds {
    /// One slot, beside other calls.
    Slot,
    /// One slot, until an interactive request needs it. Carries the number of the bulk run.
    Bulk(u64),
    /// All slots. `bulk` is the number of a bulk run.
    Exclusive { bulk: Option<u64>, _suspect: Suspect },
    /// Slot of a call that was given up.
    Lost,
}

impl SlotPermit {
    /// Marks the call as given up. It holds its slot until it ends, and nothing else: it no longer
    /// counts as a suspect, and another suspect need not wait for it.
    pub(crate) fn give_up(&self) {
        let mut holds = self.holds.lock();
        let held = std::mem::replace(&mut *holds, Holds::Lost);
        self.pool.change(|state| {
            held.release(state);
            state.lost += 1;
        });
    }
}

impl Holds {
    fn release(&self, state: &mut State) {
        match self {
            Self::Slot => state.taken -= 1,
            Self::Bulk(run) => {
                state.taken -= 1;
                state.bulk.end(*run);
            }
            Self::Exclusive { bulk, .. } => {
                state.exclusive = false;
                bulk.iter().for_each(|run| state.bulk.end(*run));
            }
            Self::Lost => state.lost -= 1,
        }
    }
}

impl Drop for SlotPermit {
    fn drop(&mut self) {
        let holds = self.holds.get_mut();
        self.pool.change(|state| holds.release(state));
    }
}

#[cfg(test)]
mod tests;
