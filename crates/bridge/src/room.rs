//! Places for calls: as many as the handler takes at once.
//!
//! The worker is handed as many deliveries at once as there are places, so a delivery finds one
//! free, unless orphans hold it or a suspect runs alone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nsbridge_queue::random_part;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::drain::Drain;
use crate::intake::{Accepted, remaining};
use crate::registry::{Registry, Running};

/// Rule R5: from so many recorded runs without a return on, a request is a suspect and runs alone.
/// If it is what kills its workers, by memory for example, it must not take its neighbors along.
const ALONE_FROM: u32 = 1;

/// How long a delivery waits before an orphan has to go for it: the orphan's own copy may be the
/// next that comes.
const PATIENCE: Duration = Duration::from_millis(250);

/// Suspects ask for their turn within so long, each at a random moment. In the order of the queue
/// the guilty one could be first each time, and the others would never run.
const SHUFFLE: Duration = Duration::from_millis(100);

/// The worker's places.
///
/// A suspect begins when nothing else runs, and while one waits the worker takes no deliveries.
/// Those that it has already go first: a suspect holds back nothing that is not one.
#[derive(Debug)]
pub(crate) struct Room {
    count: usize,
    state: Mutex<State>,
    /// Told when a place may have become free.
    changed: Notify,
    /// True while a suspect waits or runs: no deliveries are wanted meanwhile.
    quiet: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// Places taken by calls that run beside others.
    taken: usize,
    /// Places taken by calls that were given up and have not ended: nobody waits for them.
    lost: usize,
    /// Deliveries that have come, have no place yet and are no suspects, as far as is known.
    arriving: usize,
    /// Suspects that wait or run.
    suspects: usize,
    /// True while one of them runs.
    alone: bool,
    /// True while the flow of deliveries is stopped.
    paused: bool,
}

/// The answer to a request for a place.
#[derive(Debug)]
pub(crate) enum Place {
    /// It is free again when the permit is dropped.
    Taken(Permit),
    /// The deadline came first.
    Late,
    /// The delivery was lost, or the worker is to leave: give it back.
    None,
}

impl Room {
    pub(crate) fn new(places: usize) -> Self {
        let (state, changed, quiet) = (Mutex::default(), Notify::new(), watch::Sender::new(false));
        Self { count: places, state, changed, quiet }
    }

    /// A delivery has come; it counts until the value is dropped or has its place.
    pub(crate) fn arrive(self: &Arc<Self>) -> Arrival {
        self.change(|state| state.arriving += 1);
        Arrival(self.clone())
    }

    /// Follows the wish for no deliveries.
    pub(crate) fn quiet(&self) -> watch::Receiver<bool> {
        self.quiet.subscribe()
    }

    /// Notes that the flow of deliveries has stopped, or goes on.
    pub(crate) fn paused(&self, paused: bool) {
        self.change(|state| state.paused = paused);
    }

    /// Waits for a place for a request of which so many recorded runs did not return.
    pub(crate) async fn place(
        self: &Arc<Self>,
        arrival: Arrival,
        unreturned: u32,
        registry: &Registry,
        drain: &Drain,
        request: &Accepted,
        running: &Running<'_>,
    ) -> Place {
        let alone = unreturned >= ALONE_FROM;
        if alone {
            tracing::info!(request = %request.job.id, runs = unreturned, "to run alone");
        }
        let evict = async {
            sleep(PATIENCE).await;
            if !self.state().alone {
                registry.evict();
            }
            std::future::pending().await
        };
        let permit = async {
            if alone { self.alone(arrival).await } else { self.beside_others(arrival).await }
        };
        tokio::select! {
            biased;
            _ = drain.begun() => Place::None,
            () = running.orphaned() => Place::None,
            permit = permit => Place::Taken(permit),
            () = sleep(remaining(request.deadline)) => Place::Late,
            never = evict, if !alone => never,
        }
    }

    async fn beside_others(self: &Arc<Self>, arrival: Arrival) -> Permit {
        let permit = self.when(|state| {
            let free = !state.alone && state.taken + state.lost < self.count;
            free.then(|| state.taken += 1)
        });
        permit.await;
        drop(arrival);
        Permit { room: self.clone(), holds: Mutex::new(Holds::Place) }
    }

    async fn alone(self: &Arc<Self>, arrival: Arrival) -> Permit {
        let suspect = Suspect::of(self);
        drop(arrival);
        sleep(random_part(SHUFFLE)).await;
        let permit = self.when(|state| {
            let free = state.paused && !state.alone && state.taken == 0 && state.arriving == 0;
            free.then(|| state.alone = true)
        });
        permit.await;
        Permit { room: self.clone(), holds: Mutex::new(Holds::Alone { _suspect: suspect }) }
    }

    /// Waits until a change of the state is possible, and makes it.
    async fn when(&self, change: impl Fn(&mut State) -> Option<()>) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so that no change is missed in between.
            changed.as_mut().enable();
            if change(&mut self.state()).is_some() {
                return;
            }
            changed.await;
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let (suspects, empty) = (state.suspects > 0, state.taken + state.arriving == 0);
        // Told under the lock: two changes are told in their order. A consumer that resumes has its
        // whole prefetch again, so it waits until all that came before is settled.
        self.quiet.send_if_modified(|quiet| {
            let wanted = suspects || (*quiet && !empty);
            std::mem::replace(quiet, wanted) != wanted
        });
        drop(state);
        self.changed.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A delivery that has no place yet.
#[derive(Debug)]
pub(crate) struct Arrival(Arc<Room>);

impl Drop for Arrival {
    fn drop(&mut self) {
        self.0.change(|state| state.arriving -= 1);
    }
}

/// A suspect that waits or runs.
#[derive(Debug)]
struct Suspect(Arc<Room>);

impl Suspect {
    fn of(room: &Arc<Room>) -> Self {
        room.change(|state| state.suspects += 1);
        Self(room.clone())
    }
}

impl Drop for Suspect {
    fn drop(&mut self) {
        self.0.change(|state| state.suspects -= 1);
    }
}

/// A place, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    room: Arc<Room>,
    holds: Mutex<Holds>,
}

#[derive(Debug)]
enum Holds {
    /// Beside others.
    Place,
    /// All of them.
    Alone { _suspect: Suspect },
    /// One that is not waited for.
    Lost,
}

impl Permit {
    /// Notes that the call was given up. It holds its place until it ends, and nothing else: a suspect
    /// is none any more, and another need not wait for it.
    pub(crate) fn give_up(&self) {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        let held = std::mem::replace(&mut *holds, Holds::Lost);
        self.room.change(|state| {
            held.release(state);
            state.lost += 1;
        });
    }
}

impl Holds {
    fn release(&self, state: &mut State) {
        match self {
            Self::Place => state.taken -= 1,
            Self::Alone { .. } => state.alone = false,
            Self::Lost => state.lost -= 1,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let holds = self.holds.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.room.change(|state| holds.release(state));
    }
}

#[cfg(test)]
mod tests;
