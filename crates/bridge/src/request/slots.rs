//! Permits for calls: as many at once as the handler has slots.
//!
//! The prefetch is the number of slots. A delivery therefore finds a free slot, unless orphans hold
//! it or a suspect runs alone.

use std::sync::Arc;
use std::time::Duration;

use nsbridge_queue::random_part;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::drain::Drain;
use crate::request::admission::{AdmittedRequest, remaining};
use crate::request::in_flight::{InFlight, Running};
use crate::timing::Timing;

/// Number of recorded runs without a return that makes a request a suspect, which runs alone (rule
/// R5). A request that kills its workers, for example by memory, must not take its neighbors along.
const EXCLUSIVE_FROM: u32 = 1;

/// Slots of the worker.
///
/// A suspect begins when nothing else runs, and while one waits the worker takes no deliveries.
/// Deliveries that it already has go first: a suspect delays nothing but other suspects.
#[derive(Debug)]
pub(crate) struct SlotPool {
    count: usize,
    evict_after: Duration,
    shuffle: Duration,
    state: Mutex<State>,
    /// Notified when a slot may have become free.
    changed: Notify,
    /// True while no deliveries are wanted: from the arrival of a suspect until no suspect is left
    /// and all other calls have ended.
    quiet: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// Slots taken by calls that run beside others.
    taken: usize,
    /// Slots held by calls that were given up and have not ended. A suspect does not wait for them.
    lost: usize,
    /// Deliveries without a slot that are not known to be suspects.
    arriving: usize,
    /// Suspects that wait or run.
    suspects: usize,
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
    /// The delivery was lost, or the worker drains: requeue the delivery.
    Requeue,
}

impl SlotPool {
    pub(crate) fn new(count: usize, timing: &Timing) -> Self {
        Self {
            count,
            evict_after: timing.evict_orphan_after,
            shuffle: timing.suspect_shuffle,
            state: Mutex::default(),
            changed: Notify::new(),
            quiet: watch::Sender::new(false),
        }
    }

    /// Registers a delivery. It counts as arriving until the returned value is dropped.
    pub(crate) fn arrive(self: &Arc<Self>) -> Arrival {
        self.change(|state| state.arriving += 1);
        Arrival(self.clone())
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
            never = evict, if !exclusive => never,
        }
    }

    async fn shared(self: &Arc<Self>, arrival: Arrival) -> SlotPermit {
        let permit = self.when(|state| {
            let free = !state.exclusive && state.taken + state.lost < self.count;
            free.then(|| state.taken += 1)
        });
        permit.await;
        drop(arrival);
        SlotPermit { pool: self.clone(), holds: Mutex::new(Holds::Slot) }
    }

    async fn exclusive(self: &Arc<Self>, arrival: Arrival) -> SlotPermit {
        let suspect = Suspect::of(self);
        drop(arrival);
        sleep(random_part(self.shuffle)).await;
        let permit = self.when(|state| {
            let free = state.paused && !state.exclusive && state.taken == 0 && state.arriving == 0;
            free.then(|| state.exclusive = true)
        });
        permit.await;
        SlotPermit { pool: self.clone(), holds: Mutex::new(Holds::Exclusive { _suspect: suspect }) }
    }

    /// Retries `change` after each change of the state, until it succeeds.
    async fn when(&self, change: impl Fn(&mut State) -> Option<()>) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the check, so that no notification is missed in between.
            changed.as_mut().enable();
            if change(&mut self.state.lock()).is_some() {
                return;
            }
            changed.await;
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let (suspects, empty) = (state.suspects > 0, state.taken + state.arriving == 0);
        // Sent under the lock, so that receivers see changes in their order. A resumed consumer
        // gets its whole prefetch again, so it stays paused until all earlier deliveries are
        // settled.
        self.quiet.send_if_modified(|quiet| {
            let wanted = suspects || (*quiet && !empty);
            std::mem::replace(quiet, wanted) != wanted
        });
        drop(state);
        self.changed.notify_waiters();
    }
}

/// Delivery that has no slot yet.
#[derive(Debug)]
pub(crate) struct Arrival(Arc<SlotPool>);

impl Drop for Arrival {
    fn drop(&mut self) {
        self.0.change(|state| state.arriving -= 1);
    }
}

/// Suspect that waits or runs.
#[derive(Debug)]
struct Suspect(Arc<SlotPool>);

impl Suspect {
    fn of(pool: &Arc<SlotPool>) -> Self {
        pool.change(|state| state.suspects += 1);
        Self(pool.clone())
    }
}

impl Drop for Suspect {
    fn drop(&mut self) {
        self.0.change(|state| state.suspects -= 1);
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
    /// All slots.
    Exclusive { _suspect: Suspect },
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
            Self::Exclusive { .. } => state.exclusive = false,
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
