//! Session: one consuming connection, from its subscriptions to its loss.

mod bulk;

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::FutureExt;
use nsbridge_base::Pauses;
use nsbridge_base::random::random;
use nsbridge_crypto::ControlFrame;
use nsbridge_protocol::topology::{header, request_queue};
use nsbridge_protocol::{ControlKind, Priority};
use nsbridge_queue::{Connection, Consumer, Delivery};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::error::Error;
use crate::observability::traces::parent;
use crate::request::context::WorkerContext;
use crate::request::delivery_trace::DeliveryTrace;
use crate::request::disposition::WorkerAction;
use crate::request::in_flight::{OwnedDelivery, SealedControl};
use crate::request::lifecycle;
use crate::request::slots::{Arrival, Claim};

use bulk::BulkSubscriber;

/// Prefetch of the control queue. A `resume` may have 8 MiB, and handing one on takes no time.
const CONTROL_PREFETCH: u16 = 4;

/// Maximum size of a cancel frame, in bytes. A cancel has no content: only header, padding and tag.
const MAX_CANCEL_BYTES: usize = 256;

/// Session on one consuming connection.
pub(crate) struct ConsumerSession {
    /// Canceled when the connection is gone.
    lost: CancellationToken,
}

impl ConsumerSession {
    /// Declares the queues and subscribes to them.
    pub(crate) async fn start(
        worker: &Arc<WorkerContext>,
        connection: Arc<dyn Connection>,
        jobs: &TaskTracker,
    ) -> Result<Self, Error> {
        connection.declare_model(&worker.model).await?;
        // Bound before the first request is taken, so that a cancel finds its worker.
        let control_queue = worker.name_control_queue()?;
        let revision = worker.revision.as_ref();
        connection.declare_control_queue(&control_queue, &worker.model, revision).await?;
        let control = connection.consume(&control_queue, CONTROL_PREFETCH).await?;
        tokio::spawn(read_control(worker.clone(), control, connection.clone()));
        let lost = CancellationToken::new();
        // A separate task, because running jobs must learn of the loss during a drain as well.
        tokio::spawn(tell_when_lost(worker.clone(), connection.clone(), lost.clone()));
        let link =
            Link { worker: worker.clone(), connection, lost: lost.clone(), jobs: jobs.clone() };
        if worker.bulk {
            tokio::spawn(BulkSubscriber(link.clone()).run());
        }
        tokio::spawn(Subscriber(link).run());
        Ok(Self { lost })
    }

    /// Waits until the connection is gone.
    pub(crate) async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

async fn tell_when_lost(
    worker: Arc<WorkerContext>,
    connection: Arc<dyn Connection>,
    lost: CancellationToken,
) {
    let error = connection.lost().await;
    if worker.drain.moment().is_none() {
        tracing::warn!(%error, "the consuming connection is gone");
    }
    lost.cancel();
}

/// Consuming connection of a session, and the jobs of its deliveries.
#[derive(Clone)]
struct Link {
    worker: Arc<WorkerContext>,
    connection: Arc<dyn Connection>,
    lost: CancellationToken,
    jobs: TaskTracker,
}

impl Link {
    /// Runs a subscription until the worker drains or the connection is gone.
    async fn until_over(&self, subscription: impl Future<Output = Infallible>) {
        tokio::select! {
            () = self.lost.cancelled() => {}
            _ = self.worker.drain.begun() => {}
            never = subscription => match never {},
        }
    }

    /// Subscribes to the queue of a class with one delivery per slot at most. Tries until the broker
    /// accepts. A bulk subscription is paused.
    async fn subscribe(&self, priority: Priority, pauses: &mut Pauses) -> Consumer {
        let queue = request_queue(&self.worker.model, priority);
        let prefetch = u16::try_from(self.worker.runner.slots()).unwrap_or(u16::MAX);
        loop {
            let consumer = match priority {
                Priority::Bulk => self.connection.consume_paused(&queue, prefetch).await,
                _ => self.connection.consume(&queue, prefetch).await,
            };
            match consumer {
                Ok(consumer) => {
                    pauses.reset();
                    return consumer;
                }
                Err(error) => tracing::warn!(queue, %error, "cannot subscribe, trying again"),
            }
            self.restore(pauses).await;
        }
    }

    /// Waits before the next subscription, and declares the queues. The broker ends a subscription
    /// alone if the queue was deleted or a job held a delivery for too long.
    async fn restore(&self, pauses: &mut Pauses) {
        sleep(pauses.next(random())).await;
        drop(self.connection.declare_model(&self.worker.model).await);
    }

    fn start(&self, owned: OwnedDelivery) {
        let arrival = self.worker.slots.arrive(Claim::new(owned.priority));
        self.jobs.spawn(run(self.worker.clone(), owned, arrival));
    }
}

/// Single subscription to the model's queue, with one prefetched delivery per slot.
///
/// All deliveries share one channel. With a channel for each, the broker of a dying connection
/// hands the deliveries of the first channel to the second, and so on through all of them: three
/// cuts have led to fourteen attempts.
struct Subscriber(Link);

impl Subscriber {
    async fn run(self) {
        let publishing = &self.0.worker.publishing;
        let taking = async {
            let mut pauses = self.0.worker.timing.session_retry.pauses();
            loop {
                if !publishing.works() {
                    publishing.intake_stopped();
                    publishing.working().await;
                }
                let consumer = self.0.subscribe(Priority::Interactive, &mut pauses).await;
                self.take(consumer).await;
                self.0.restore(&mut pauses).await;
            }
        };
        self.0.until_over(taking).await;
    }

    /// Takes deliveries until the channel is gone.
    async fn take(&self, mut consumer: Consumer) {
        let worker = &self.0.worker;
        let (model, slots) = (&worker.model, worker.runner.slots());
        tracing::info!(%model, slots, "taking requests");
        let _consuming = worker.consuming.begin();
        // Child token: canceled by the end of the channel and by the loss of the connection.
        let gone = self.0.lost.child_token();
        let slots = &worker.slots;
        slots.paused(false);
        let mut quiet = slots.quiet();
        quiet.mark_changed();
        let mut publishes = true;
        loop {
            tokio::select! {
                biased;
                Ok(()) = quiet.changed() => {}
                () = worker.publishing.changed(publishes) => publishes = !publishes,
                next = consumer.recv() => {
                    let Some(delivery) = next else { break };
                    self.start(delivery, &gone);
                    continue;
                }
            }
            let wanted = publishes && !*quiet.borrow_and_update();
            if let Err(error) = self.let_flow(wanted, &mut consumer, &gone).await {
                tracing::warn!(%error, "the subscription ended while it was paused");
                break;
            }
        }
        slots.paused(false);
        gone.cancel();
    }

    /// Pauses or resumes the flow of deliveries.
    async fn let_flow(
        &self,
        wanted: bool,
        consumer: &mut Consumer,
        gone: &CancellationToken,
    ) -> nsbridge_queue::Result<()> {
        if wanted {
            // Before the resume, so that no suspect begins in between.
            self.0.worker.slots.paused(false);
            consumer.resume().await?;
        } else {
            consumer.pause().await?;
            // No delivery follows these. A suspect may begin once they have had their turn.
            while let Some(delivery) = consumer.try_recv() {
                self.start(delivery, gone);
            }
            self.0.worker.slots.paused(true);
            self.0.worker.publishing.intake_stopped();
        }
        Ok(())
    }

    fn start(&self, delivery: Delivery, gone: &CancellationToken) {
        let (priority, gone) = (Priority::Interactive, gone.clone());
        self.0.start(OwnedDelivery { delivery, priority, gone, _credit: None });
    }
}

async fn run(worker: Arc<WorkerContext>, owned: OwnedDelivery, arrival: Arrival) {
    // While the worker pauses, the delivery waits here. Requeued, it would be redelivered at once.
    tokio::select! {
        biased;
        _ = worker.drain.begun() => return,
        () = worker.publishing.given_up() => return,
        () = worker.intake.resumed() => {}
        () = owned.gone.cancelled() => return,
    }
    let (observability, model) = (&worker.observability, &worker.model);
    let trace = DeliveryTrace::begin(observability, model, owned.priority, &owned.delivery.message);
    // Boxed, because the future of a whole job is large.
    let job = Box::pin(lifecycle::handle_delivery(&worker, owned, arrival, &trace));
    let job = job.instrument(trace.log());
    let job = std::panic::AssertUnwindSafe(job);
    // Handler code runs in this task too, and may panic: the wake-ups of its engine.
    let action = job.catch_unwind().await;
    trace.settled();
    match action {
        Ok(WorkerAction::Continue) => {}
        Ok(WorkerAction::Pause(pause)) => worker.intake.pause(pause),
        Err(_) => worker.leave("it panicked"),
    }
}

/// Passes control frames to their jobs for as long as the connection lives.
async fn read_control(
    worker: Arc<WorkerContext>,
    mut control: Consumer,
    connection: Arc<dyn Connection>,
) {
    while let Some(delivery) = control.recv().await {
        let before = parent(&delivery.message.properties, header::TRACE_BEFORE);
        let sealed = SealedControl { frame: delivery.message.body.clone(), before };
        drop(delivery.ack().await);
        let Ok(parsed) = ControlFrame::parse(&sealed.frame) else { continue };
        // Cancels are kept before they can be verified, so they must be small.
        if parsed.kind == ControlKind::Resume || sealed.frame.len() <= MAX_CANCEL_BYTES {
            worker.in_flight.deliver(parsed.request, &sealed, parsed.kind == ControlKind::Cancel);
        }
    }
    // Without its control queue the worker would miss cancels, so a new session has to start.
    connection.close().await;
}
