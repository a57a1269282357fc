//! A worker: connections, slots, and the end of both.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use nsbridge_crypto::{ControlFrame, KeyProvider};
use nsbridge_protocol::topology::{control_queue, model_queue};
use nsbridge_protocol::{ControlKind, ModelName};
use nsbridge_queue::{Broker, Connection, Consumer};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::attempt::Address;
use crate::config::ReplyConfig;
use crate::error::Error;
use crate::intake::Accepted;
use crate::job;
use crate::pool::Pool;
use crate::registry::Registry;
use crate::runner::Runner;
use crate::verdict::After;
use nsbridge_queue::Link;

/// Control frames that may be read ahead; each is small.
const CONTROL_PREFETCH: u16 = 64;

/// A cancel has no content: header, padding and tag.
const MAX_CANCEL_BYTES: usize = 256;

/// Between two tries at the same thing.
const PAUSE: Duration = Duration::from_millis(200);

/// How long handing over may take after the grace.
const HAND_OVER: Duration = Duration::from_secs(10);

/// A loaded handler that takes requests from its model's queue.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    consume: Link,
    grace: Duration,
    ready: watch::Sender<bool>,
}

/// What all jobs of a worker share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) model: ModelName,
    pub(crate) name: String,
    pub(crate) control_queue: String,
    pub(crate) reply: ReplyConfig,
    pub(crate) keys: Arc<dyn KeyProvider>,
    pub(crate) runner: Runner,
    pub(crate) registry: Registry,
    pub(crate) publish: Pool,
    /// Cancelled when the grace is over.
    pub(crate) hand_off: CancellationToken,
}

impl Shared {
    pub(crate) fn address<'a>(
        &'a self,
        request: &'a Accepted,
        overdue: CancellationToken,
    ) -> Address<'a> {
        Address {
            pool: &self.publish,
            config: &self.reply,
            reply_to: &request.reply_to,
            control_queue: &self.control_queue,
            worker: &self.name,
            root: &request.reply_root,
            request: request.job.id,
            attempt: request.attempt,
            fingerprint: self.runner.fingerprint(),
            overdue,
        }
    }
}

/// What a worker is made of.
#[derive(Debug)]
pub struct Parts {
    /// The model whose queue it takes requests from.
    pub model: ModelName,
    /// Its name in logs and replies.
    pub name: String,
    /// Where the queue is.
    pub broker: Arc<dyn Broker>,
    /// Where keys come from.
    pub keys: Arc<dyn KeyProvider>,
    /// How replies are cut into frames.
    pub reply: ReplyConfig,
    /// How long running jobs get to finish when the worker is to leave.
    pub grace: Duration,
}

impl Worker {
    pub(crate) fn new(parts: Parts, runner: Runner) -> Result<Self, Error> {
        let Parts { model, name, broker, keys, reply, grace } = parts;
        let shared = Shared {
            control_queue: control_queue(random()?),
            publish: Pool::new(broker.clone(), format!("{name} publish")),
            registry: Registry::default(),
            hand_off: CancellationToken::new(),
            model,
            reply,
            keys,
            runner,
            name,
        };
        let consume = Link::new(broker, format!("{} consume", shared.name));
        Ok(Self { shared: Arc::new(shared), consume, grace, ready: watch::Sender::new(false) })
    }

    /// Tells whether the worker is subscribed to its queue.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Takes and answers requests until `shutdown`, then finishes what fits into the grace and
    /// gives the rest back.
    ///
    /// # Errors
    ///
    /// [`Error::Handler`] if the handler broke, [`Error::Queue`] if the broker's queues are not
    /// the protocol's. A broker that is merely away is waited for.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let jobs = TaskTracker::new();
        let stop = shutdown.child_token();
        let broken = watch::Sender::new(None);
        let ended = tokio::select! {
            ended = self.serve(&jobs, &stop, &broken) => ended,
            () = shutdown.cancelled() => Ok(()),
        };
        self.ready.send_replace(false);
        stop.cancel();
        self.drain(&jobs).await;
        ended
    }

    /// One session after another, until the handler breaks.
    async fn serve(
        &self,
        jobs: &TaskTracker,
        stop: &CancellationToken,
        broken: &watch::Sender<Broken>,
    ) -> Result<(), Error> {
        let mut heard = broken.subscribe();
        loop {
            match self.session(jobs, stop, broken).await {
                Ok(session) => {
                    self.ready.send_replace(true);
                    tokio::select! {
                        error = session.connection.lost() => {
                            tracing::warn!(%error, "the consuming connection is gone");
                        }
                        why = heard.wait_for(Option::is_some) => {
                            return Err(Error::Handler(why.ok().and_then(|why| *why).unwrap_or("")));
                        }
                    }
                    self.ready.send_replace(false);
                    session.lost.cancel();
                }
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "no session, trying again");
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens the consuming connection and starts the slots on it.
    async fn session(
        &self,
        jobs: &TaskTracker,
        stop: &CancellationToken,
        broken: &watch::Sender<Broken>,
    ) -> nsbridge_queue::Result<Session> {
        let connection = self.consume.connection().await;
        let shared = &self.shared;
        connection.declare_model(&shared.model).await?;
        // Bound before the first request is taken: a cancel must find the worker it is for.
        connection.declare_control_queue(&shared.control_queue, &shared.model).await?;
        let control = connection.consume(&shared.control_queue, CONTROL_PREFETCH).await?;
        tokio::spawn(read_control(shared.clone(), control, connection.clone()));
        let lost = CancellationToken::new();
        for _ in 0..shared.runner.slots() {
            let slot = Slot {
                shared: shared.clone(),
                connection: connection.clone(),
                lost: lost.clone(),
                stop: stop.clone(),
                broken: broken.clone(),
            };
            jobs.spawn(slot.run());
        }
        tracing::info!(model = %shared.model, slots = shared.runner.slots(), "taking requests");
        Ok(Session { connection, lost })
    }

    async fn drain(&self, jobs: &TaskTracker) {
        jobs.close();
        if timeout(self.grace, jobs.wait()).await.is_err() {
            tracing::info!(jobs = jobs.len(), "the grace is over, handing jobs over");
            self.shared.hand_off.cancel();
            // What cannot be handed over in this time comes back when the connection closes.
            let _ = timeout(HAND_OVER, jobs.wait()).await;
        }
        self.shared.publish.close().await;
        self.consume.close().await;
    }
}

/// One life of the consuming connection.
struct Session {
    connection: Arc<dyn Connection>,
    /// To be cancelled when the connection is gone.
    lost: CancellationToken,
}

/// Why the handler cannot go on.
type Broken = Option<&'static str>;

/// One subscription with one job at a time: a late job cannot send its neighbours back.
struct Slot {
    shared: Arc<Shared>,
    connection: Arc<dyn Connection>,
    lost: CancellationToken,
    stop: CancellationToken,
    broken: watch::Sender<Broken>,
}

impl Slot {
    /// Takes jobs until told to stop or the connection is gone.
    async fn run(self) {
        while !self.stop.is_cancelled() && !self.lost.is_cancelled() {
            match self.connection.consume(&model_queue(&self.shared.model), 1).await {
                Ok(consumer) => self.take(consumer).await,
                Err(error) => tracing::warn!(%error, "cannot subscribe, trying again"),
            }
            // A subscription ends alone if the queue was deleted or a job held it for too long.
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.lost.cancelled() => {}
                () = sleep(PAUSE) => drop(self.connection.declare_model(&self.shared.model).await),
            }
        }
    }

    async fn take(&self, mut consumer: Consumer) {
        loop {
            let delivery = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                delivery = consumer.recv() => delivery,
            };
            let Some(delivery) = delivery else { return };
            let job = AssertUnwindSafe(job::run(&self.shared, delivery, &self.lost));
            // Handler code runs here too: its fingerprint, the wake-ups of its engine.
            match job.catch_unwind().await.unwrap_or(After::Leave("it panicked")) {
                After::Next => {}
                After::Rest(pause) => sleep(pause).await,
                After::Leave(why) => {
                    self.broken.send_replace(Some(why));
                    self.stop.cancel();
                }
            }
        }
    }
}

/// Hands control frames to the jobs they are for, as long as the connection lives.
async fn read_control(shared: Arc<Shared>, mut control: Consumer, connection: Arc<dyn Connection>) {
    while let Some(delivery) = control.recv().await {
        let frame = delivery.message.body.clone();
        drop(delivery.ack().await);
        let Ok(parsed) = ControlFrame::parse(&frame) else { continue };
        // Cancels are kept before anybody can verify them, so they must be small.
        if parsed.kind == ControlKind::Resume || frame.len() <= MAX_CANCEL_BYTES {
            shared.registry.post(parsed.request, &frame, parsed.kind == ControlKind::Cancel);
        }
    }
    // Without its control queue a worker would miss cancels: the session must start again.
    connection.close().await;
}

pub(crate) fn random() -> Result<u128, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::System {
        what: "get random bytes",
        source: std::io::Error::other(error.to_string()),
    })?;
    Ok(u128::from_ne_bytes(bytes))
}
