//! One life of the consuming connection: subscriptions, and what comes over them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use nsbridge_crypto::ControlFrame;
use nsbridge_protocol::ControlKind;
use nsbridge_protocol::topology::{header, model_queue};
use nsbridge_queue::{Connection, Consumer, Delivery};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::context::Shared;
use crate::error::Error;
use crate::job;
use crate::registry::{Held, Mail};
use crate::room::Arrival;
use crate::telemetry::parent;
use crate::verdict::After;
use crate::visit::Visit;

/// Control frames that may be read ahead: a resume may have 8 MiB, and takes no time to hand on.
const CONTROL_PREFETCH: u16 = 4;

/// A cancel has no content: header, padding and tag.
const MAX_CANCEL_BYTES: usize = 256;

/// Between two tries at the same thing.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);

/// One life of the consuming connection.
pub(crate) struct Session {
    /// Cancelled when the connection is gone.
    lost: CancellationToken,
}

impl Session {
    /// Makes sure of the queues and subscribes to them.
    pub(crate) async fn start(
        shared: &Arc<Shared>,
        connection: Arc<dyn Connection>,
        jobs: &TaskTracker,
    ) -> Result<Self, Error> {
        connection.declare_model(&shared.model).await?;
        // Bound before the first request is taken: a cancel must find the worker it is for.
        let control_queue = shared.name_control_queue()?;
        let revision = shared.revision.as_ref();
        connection.declare_control_queue(&control_queue, &shared.model, revision).await?;
        let control = connection.consume(&control_queue, CONTROL_PREFETCH).await?;
        tokio::spawn(read_control(shared.clone(), control, connection.clone()));
        let lost = CancellationToken::new();
        // Watched by a task of its own: running jobs must learn of the loss while draining too.
        tokio::spawn(tell_when_lost(shared.clone(), connection.clone(), lost.clone()));
        let (shared, jobs) = (shared.clone(), jobs.clone());
        tokio::spawn(Subscriber { shared, connection, lost: lost.clone(), jobs }.run());
        Ok(Self { lost })
    }

    /// Waits until the connection is gone.
    pub(crate) async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

async fn tell_when_lost(
    shared: Arc<Shared>,
    connection: Arc<dyn Connection>,
    lost: CancellationToken,
) {
    let error = connection.lost().await;
    if shared.drain.moment().is_none() {
        tracing::warn!(%error, "the consuming connection is gone");
    }
    lost.cancel();
}

/// The one subscription: as many deliveries at once as there are places.
///
/// One channel holds them all. With a channel for each, a dying connection's broker hands what the
/// first channel held to the next, and so on through all of them: fourteen attempts of three cuts.
struct Subscriber {
    shared: Arc<Shared>,
    connection: Arc<dyn Connection>,
    lost: CancellationToken,
    jobs: TaskTracker,
}

impl Subscriber {
    /// Takes deliveries until the worker is to leave or the connection is gone.
    async fn run(self) {
        tokio::select! {
            () = self.lost.cancelled() => {}
            _ = self.shared.drain.begun() => {}
            never = self.subscribe() => match never {},
        }
    }

    async fn subscribe(&self) -> Infallible {
        let (queue, places) = (model_queue(&self.shared.model), self.shared.runner.slots());
        let places = u16::try_from(places).unwrap_or(u16::MAX);
        loop {
            match self.connection.consume(&queue, places).await {
                Ok(consumer) => self.take(consumer).await,
                Err(error) => tracing::warn!(%error, "cannot subscribe, trying again"),
            }
            // A subscription ends alone if the queue was deleted or a job held it for too long.
            sleep(PAUSE).await;
            drop(self.connection.declare_model(&self.shared.model).await);
        }
    }

    /// Takes deliveries until the channel is gone.
    async fn take(&self, mut consumer: Consumer) {
        let (model, slots) = (&self.shared.model, self.shared.runner.slots());
        tracing::info!(%model, slots, "taking requests");
        let _consuming = self.shared.consuming.begin();
        // A child: what ends with the channel ends with the connection too.
        let gone = self.lost.child_token();
        let room = &self.shared.room;
        room.paused(false);
        let mut quiet = room.quiet();
        quiet.mark_changed();
        loop {
            let next = tokio::select! {
                biased;
                Ok(()) = quiet.changed() => {
                    let wanted = !*quiet.borrow_and_update();
                    if let Err(error) = self.let_flow(wanted, &mut consumer, &gone).await {
                        tracing::warn!(%error, "the subscription ended while it was paused");
                        break;
                    }
                    continue;
                }
                next = consumer.recv() => next,
            };
            let Some(delivery) = next else { break };
            self.start(delivery, &gone);
        }
        room.paused(false);
        gone.cancel();
    }

    /// Pauses the flow of deliveries, or lets it go on.
    async fn let_flow(
        &self,
        wanted: bool,
        consumer: &mut Consumer,
        gone: &CancellationToken,
    ) -> nsbridge_queue::Result<()> {
        if wanted {
            // First, so that no suspect begins in between.
            self.shared.room.paused(false);
            consumer.resume().await?;
        } else {
            consumer.pause().await?;
            // All that comes has come: a suspect may begin once these have had their turn.
            while let Some(delivery) = consumer.try_recv() {
                self.start(delivery, gone);
            }
            self.shared.room.paused(true);
        }
        Ok(())
    }

    fn start(&self, delivery: Delivery, gone: &CancellationToken) {
        let held = Held { delivery, gone: gone.clone() };
        let arrival = self.shared.room.arrive();
        self.jobs.spawn(run(self.shared.clone(), held, arrival));
    }
}

async fn run(shared: Arc<Shared>, held: Held, arrival: Arrival) {
    // A delivery that came waits here: given back, it would come again at once.
    tokio::select! {
        biased;
        _ = shared.drain.begun() => return,
        () = shared.rest.over() => {}
        () = held.gone.cancelled() => return,
    }
    let visit = Visit::begin(&shared.vitals, &shared.model, &held.delivery.message);
    let job = job::run(&shared, held, arrival, &visit).instrument(visit.log());
    let job = std::panic::AssertUnwindSafe(job);
    // Handler code runs here too: its fingerprint, the wake-ups of its engine.
    let after = job.catch_unwind().await.unwrap_or(After::Leave("it panicked"));
    visit.settled();
    match after {
        After::Next => {}
        After::Rest(pause) => shared.rest.take(pause),
        After::Leave(why) => shared.leave(why),
    }
}

/// Hands control frames to the jobs they are for, as long as the connection lives.
async fn read_control(shared: Arc<Shared>, mut control: Consumer, connection: Arc<dyn Connection>) {
    while let Some(delivery) = control.recv().await {
        let before = parent(&delivery.message.properties, header::TRACE_BEFORE);
        let mail = Mail { frame: delivery.message.body.clone(), before };
        drop(delivery.ack().await);
        let Ok(parsed) = ControlFrame::parse(&mail.frame) else { continue };
        // Cancels are kept before anybody can verify them, so they must be small.
        if parsed.kind == ControlKind::Resume || mail.frame.len() <= MAX_CANCEL_BYTES {
            shared.registry.post(parsed.request, &mail, parsed.kind == ControlKind::Cancel);
        }
    }
    // Without its control queue a worker would miss cancels: the session must start again.
    connection.close().await;
}
