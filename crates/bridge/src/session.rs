//! One life of the consuming connection: subscriptions, and what comes over them.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use nsbridge_crypto::ControlFrame;
use nsbridge_protocol::ControlKind;
use nsbridge_protocol::topology::{header, model_queue};
use nsbridge_queue::{Connection, Consumer};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::error::Error;
use crate::job;
use crate::registry::{Held, Mail};
use crate::telemetry::parent;
use crate::verdict::After;
use crate::visit::Visit;
use crate::worker::Shared;

/// Control frames that may be read ahead; each is small.
const CONTROL_PREFETCH: u16 = 64;

/// A cancel has no content: header, padding and tag.
const MAX_CANCEL_BYTES: usize = 256;

/// Between two tries at the same thing.
const PAUSE: Duration = Duration::from_millis(200);

/// One life of the consuming connection.
pub(crate) struct Session {
    /// Cancelled when the connection is gone.
    lost: CancellationToken,
}

impl Session {
    /// Makes sure of the queues and subscribes to them, once for each place.
    pub(crate) async fn start(
        shared: &Arc<Shared>,
        connection: Arc<dyn Connection>,
        jobs: &TaskTracker,
    ) -> Result<Self, Error> {
        connection.declare_model(&shared.model).await?;
        // Bound before the first request is taken: a cancel must find the worker it is for.
        let control_queue = shared.name_control_queue()?;
        connection.declare_control_queue(&control_queue, &shared.model).await?;
        let control = connection.consume(&control_queue, CONTROL_PREFETCH).await?;
        tokio::spawn(read_control(shared.clone(), control, connection.clone()));
        let lost = CancellationToken::new();
        // Watched by a task of its own: running jobs must learn of the loss while draining too.
        tokio::spawn(tell_when_lost(shared.clone(), connection.clone(), lost.clone()));
        for _ in 0..shared.runner.slots() {
            let (shared, connection) = (shared.clone(), connection.clone());
            let subscriber =
                Subscriber { shared, connection, lost: lost.clone(), jobs: jobs.clone() };
            tokio::spawn(subscriber.run());
        }
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

/// One channel with one delivery at a time: a late job cannot send its neighbours back.
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
        loop {
            self.shared.rest.over().await;
            match self.connection.consume(&model_queue(&self.shared.model), 1).await {
                Ok(consumer) => self.take(consumer).await,
                Err(error) => tracing::warn!(%error, "cannot subscribe, trying again"),
            }
            // A subscription ends alone if the queue was deleted or a job held it for too long.
            sleep(PAUSE).await;
            drop(self.connection.declare_model(&self.shared.model).await);
        }
    }

    /// Takes deliveries until the channel is gone or the worker rests.
    async fn take(&self, mut consumer: Consumer) {
        let _consuming = self.shared.consuming.one_more(&self.shared);
        // A child: what ends with the channel ends with the connection too.
        let gone = self.lost.child_token();
        loop {
            let delivery = tokio::select! {
                biased;
                () = self.shared.rest.begun() => return,
                delivery = consumer.recv() => delivery,
            };
            let Some(delivery) = delivery else {
                gone.cancel();
                return;
            };
            let held = Held { delivery, gone: gone.clone() };
            self.jobs.spawn(run(self.shared.clone(), held));
        }
    }
}

async fn run(shared: Arc<Shared>, held: Held) {
    let visit = Visit::begin(&shared.vitals, &shared.model, &held.delivery.message);
    let job = job::run(&shared, held, &visit).instrument(visit.log());
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

/// How many subscriptions there are, and since when there is any.
#[derive(Debug, Default)]
pub(crate) struct Consuming {
    count: Mutex<usize>,
    since: watch::Sender<Option<Instant>>,
}

impl Consuming {
    /// Since when the worker takes requests; `None` while it does not.
    pub(crate) fn since(&self) -> watch::Receiver<Option<Instant>> {
        self.since.subscribe()
    }

    /// Counts a subscription for as long as the value lives.
    fn one_more<'a>(&'a self, shared: &Shared) -> OneMore<'a> {
        if self.change(|count| count + 1) == 1 {
            tracing::info!(model = %shared.model, slots = shared.runner.slots(), "taking requests");
        }
        OneMore(self)
    }

    fn change(&self, change: impl FnOnce(usize) -> usize) -> usize {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = change(*count);
        self.since.send_if_modified(|since| {
            let before = *since;
            *since = (*count > 0).then(|| since.unwrap_or_else(Instant::now));
            *since != before
        });
        *count
    }
}

struct OneMore<'a>(&'a Consuming);

impl Drop for OneMore<'_> {
    fn drop(&mut self) {
        self.0.change(|count| count - 1);
    }
}

/// When the worker takes deliveries again, after its key service could not answer.
#[derive(Debug, Default)]
pub(crate) struct Rest(watch::Sender<Option<Instant>>);

impl Rest {
    pub(crate) fn take(&self, pause: Duration) {
        self.0.send_replace(Some(Instant::now() + pause));
    }

    /// Waits until the worker rests.
    pub(crate) async fn begun(&self) {
        let mut until = self.0.subscribe();
        let rests = |until: &Option<Instant>| until.is_some_and(|until| until > Instant::now());
        let _ = until.wait_for(rests).await;
    }

    /// Waits until the worker does not rest.
    pub(crate) async fn over(&self) {
        let until = *self.0.borrow();
        if let Some(until) = until {
            sleep_until(until).await;
        }
    }
}
