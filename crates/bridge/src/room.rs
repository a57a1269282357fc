//! Places for calls: as many as the handler takes at once.
//!
//! The worker is handed as many deliveries at once as there are places, so a delivery finds one
//! free, unless orphans hold it or somebody is to run alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nsbridge_queue::random_part;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::sleep;

use crate::intake::{Accepted, remaining};
use crate::registry::Running;
use crate::worker::Shared;

/// Rule R5: from so many earlier deliveries on, a request runs alone. If it is what kills its
/// workers, by memory for example, it must not take its neighbours along.
const ALONE_FROM: u64 = 2;

/// How long a delivery waits before an orphan has to go for it: the orphan's own copy may be the
/// next that comes.
const PATIENCE: Duration = Duration::from_millis(250);

/// Suspects ask for their turn within so long, each at a random moment. In the order of the queue
/// the guilty one could be first each time, until all who wait with it count as poison too.
const SHUFFLE: Duration = Duration::from_millis(100);

/// The worker's places.
#[derive(Debug)]
pub(crate) struct Room {
    places: Semaphore,
    count: u32,
    /// Those who wait to be alone: what others wait for then is them, not orphans.
    lonely: AtomicUsize,
}

/// What came of asking for a place.
#[derive(Debug)]
pub(crate) enum Place<'a> {
    /// It is free again when this is dropped.
    Taken { _permit: SemaphorePermit<'a> },
    /// The deadline came first.
    Late,
    /// The delivery was lost, or the worker is to leave: give it back.
    None,
}

impl Room {
    pub(crate) fn new(places: usize) -> Self {
        let count = u32::try_from(places).unwrap_or(u32::MAX);
        Self { places: Semaphore::new(count as usize), count, lonely: AtomicUsize::new(0) }
    }

    /// Waits for a place. Those who ask first are served first, so that whoever wants to be alone
    /// is, some time.
    pub(crate) async fn place<'a>(
        &'a self,
        shared: &Shared,
        request: &Accepted,
        running: &Running<'_>,
    ) -> Place<'a> {
        let alone = request.deliveries >= ALONE_FROM;
        let wanted = if alone { self.count } else { 1 };
        if alone {
            tracing::info!(request = %request.job.id, deliveries = request.deliveries, "to run alone");
        }
        let _lonely = alone.then(|| Lonely::count(&self.lonely));
        let evict = async {
            sleep(PATIENCE).await;
            if self.lonely.load(Ordering::Relaxed) == 0 {
                shared.registry.evict();
            }
            std::future::pending().await
        };
        let permit = async {
            if alone {
                sleep(random_part(SHUFFLE)).await;
            }
            self.places.acquire_many(wanted).await
        };
        tokio::select! {
            biased;
            _ = shared.drain.begun() => Place::None,
            permit = permit => match permit {
                Ok(_permit) => Place::Taken { _permit },
                // Never closed.
                Err(_) => Place::None,
            },
            () = running.orphaned() => Place::None,
            () = sleep(remaining(request.deadline)) => Place::Late,
            never = evict, if !alone => never,
        }
    }
}

/// One who waits to be alone.
struct Lonely<'a>(&'a AtomicUsize);

impl<'a> Lonely<'a> {
    fn count(all: &'a AtomicUsize) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl Drop for Lonely<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
