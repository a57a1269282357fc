//! A worker: connections, jobs, and the end of both.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nsbridge_crypto::KeyProvider;
use nsbridge_handler::Health;
use nsbridge_protocol::topology::control_queue;
use nsbridge_protocol::{ModelName, Revision};
use nsbridge_queue::{Broker, Link};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::attempt::Address;
use crate::config::ReplyConfig;
use crate::drain::Drain;
use crate::error::Error;
use crate::intake::Accepted;
use crate::metrics::Side;
use crate::pool::Pool;
use crate::registry::Registry;
use crate::rest::Rest;
use crate::room::Room;
use crate::runner::Runner;
use crate::session::{Consuming, PAUSE, Session};
use crate::visit::Visit;
use crate::vitals::{Vitals, rounds};

/// How long handing over may take after the grace.
const HAND_OVER: Duration = Duration::from_secs(10);

/// This many characters of what a handler says of itself are logged.
const LONGEST_REASON: usize = 300;

/// How long the worker waits for the handler's own word on why it is broken.
const SAYS_WITHIN: Duration = Duration::from_secs(1);

/// A loaded handler that takes requests from its model's queue.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
}

/// What all jobs of a worker share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) model: ModelName,
    pub(crate) revision: Option<Revision>,
    pub(crate) name: String,
    /// The name of the session's own queue. A new one each time: the broker may keep an earlier
    /// session's for as long as it believes in its connection.
    control_queue: Mutex<String>,
    pub(crate) reply: ReplyConfig,
    pub(crate) keys: Arc<dyn KeyProvider>,
    pub(crate) runner: Runner,
    pub(crate) registry: Registry,
    pub(crate) room: Arc<Room>,
    /// Takes requests, acks, and keeps the records of runs. It never publishes.
    pub(crate) consume: Link,
    pub(crate) publish: Pool,
    pub(crate) drain: Drain,
    pub(crate) consuming: Consuming,
    pub(crate) rest: Rest,
    pub(crate) vitals: Vitals,
    /// Why the handler cannot go on.
    broken: watch::Sender<Option<String>>,
    /// Whether that is its own word: what it runs may never return.
    pub(crate) unwell: CancellationToken,
}

impl Shared {
    pub(crate) fn address<'a>(
        &'a self,
        request: &'a Accepted,
        visit: &'a Visit,
        overdue: CancellationToken,
    ) -> Address<'a> {
        Address {
            pool: &self.publish,
            config: &self.reply,
            reply_to: &request.reply_to,
            control_queue: &self.control_queue,
            worker: &self.name,
            revision: self.revision.as_ref(),
            root: &request.reply_root,
            request: request.job.id,
            fingerprint: self.runner.fingerprint(),
            visit,
            overdue,
        }
    }

    /// Draws the name of a session's control queue; streams that are opened from now on tell it.
    pub(crate) fn name_control_queue(&self) -> Result<String, Error> {
        let name = control_queue(random()?);
        self.control_queue.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&name);
        Ok(name)
    }

    /// The handler is broken: the worker gives its jobs back and leaves.
    pub(crate) fn leave(&self, why: &str) {
        self.broken.send_replace(Some(why.to_owned()));
    }

    /// The handler says so itself: none of its jobs will come to an end, however long they are waited
    /// for.
    pub(crate) fn unwell(&self, reason: &str) {
        self.leave(&format!("it said that it is not well: {}", in_a_line(reason)));
        self.unwell.cancel();
        self.drain.by(Instant::now());
    }

    /// Returns true while the handler's calls do not get on.
    pub(crate) fn calls_stand_still(&self) -> bool {
        self.vitals.health.calls_stand_still()
    }

    /// Waits until it is.
    async fn handler_broke(&self) {
        // The sender is ours.
        let _ = self.broken.subscribe().wait_for(Option::is_some).await;
    }
}

/// What a worker is made of.
#[derive(Debug)]
pub struct Parts {
    /// The model whose queue it takes requests from.
    pub model: ModelName,
    /// The revision of the model that it serves, if it has one.
    pub revision: Option<Revision>,
    /// Its name in logs and replies.
    pub name: String,
    /// Where the queue is.
    pub broker: Arc<dyn Broker>,
    /// Where keys come from.
    pub keys: Arc<dyn KeyProvider>,
    /// How replies are cut into frames.
    pub reply: ReplyConfig,
    /// The order to leave.
    pub drain: Drain,
    /// What it tells about itself.
    pub vitals: Vitals,
}

impl Worker {
    pub(crate) fn new(parts: Parts, runner: Runner) -> Result<Self, Error> {
        let Parts { model, revision, name, broker, keys, reply, drain, vitals } = parts;
        vitals.loaded(runner.fingerprint(), revision.as_ref());
        vitals.metrics.slots(runner.slots());
        vitals.metrics.measures_of(runner.handler());
        let shared = Shared {
            control_queue: Mutex::default(),
            publish: Pool::new(broker.clone(), format!("{name} publish"), vitals.metrics.clone()),
            consume: Link::new(broker, format!("{name} consume")),
            registry: Registry::default(),
            room: Arc::new(Room::new(runner.slots())),
            consuming: Consuming::default(),
            rest: Rest::default(),
            broken: watch::Sender::new(None),
            unwell: CancellationToken::new(),
            model,
            revision,
            reply,
            keys,
            runner,
            drain,
            vitals,
            name,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Tells since when the worker is subscribed to its queue; `None` while it is not.
    pub fn consuming(&self) -> watch::Receiver<Option<Instant>> {
        self.shared.consuming.since()
    }

    /// Has the handler drop what it keeps of ended requests whenever a key is withdrawn, for as long as
    /// the sender lives.
    pub(crate) fn forget_when(&self, mut withdrawn: watch::Receiver<()>) {
        let runner = self.shared.runner.clone();
        tokio::spawn(async move {
            while withdrawn.changed().await.is_ok() {
                tracing::info!("a key was withdrawn: what is kept of ended requests is dropped");
                let runner = runner.clone();
                let _ = tokio::task::spawn_blocking(move || runner.forget()).await;
            }
        });
    }

    /// The order to leave, that the worker was made with.
    pub fn drain(&self) -> Drain {
        self.shared.drain.clone()
    }

    /// Takes and answers requests until it is to leave, then finishes what fits into the time it
    /// is given, and gives the rest back.
    ///
    /// # Errors
    ///
    /// [`Error::Handler`] if the handler broke, [`Error::Queue`] if the broker's queues are not
    /// the protocol's. A broker that is merely away is waited for.
    pub async fn run(self) -> Result<(), Error> {
        tokio::select! {
            ended = self.work() => ended,
            never = rounds(&self.shared) => match never {},
        }
    }

    async fn work(&self) -> Result<(), Error> {
        let jobs = TaskTracker::new();
        let drain = self.drain();
        let ended = tokio::select! {
            _ = self.shared.handler_broke() => Ok(()),
            error = self.serve(&jobs) => Err(error),
            _ = drain.begun() => Ok(()),
        };
        if drain.moment().is_none() {
            drain.begin();
        }
        self.leave(&jobs).await;
        // It may have broken while the worker left, too.
        let broken = self.shared.broken.borrow().clone();
        match broken {
            Some(why) => Err(Error::Handler(self.in_its_words(why).await)),
            None => ended,
        }
    }

    /// One session after another, until one cannot begin.
    async fn serve(&self, jobs: &TaskTracker) -> Error {
        loop {
            let connection = self.shared.consume.connection().await;
            match Session::start(&self.shared, connection, jobs).await {
                Ok(session) => {
                    session.lost().await;
                    self.shared.vitals.metrics.reconnected(Side::Consume);
                }
                Err(Error::Queue(error)) if error.is_retryable() => {
                    tracing::warn!(%error, "no session, trying again");
                    sleep(PAUSE).await;
                }
                Err(error) => return error,
            }
        }
    }

    /// Adds what the handler says itself, if it has not and says so at once.
    async fn in_its_words(&self, why: String) -> String {
        if self.shared.unwell.is_cancelled() {
            return why;
        }
        let runner = self.shared.runner.clone();
        let asked = tokio::task::spawn_blocking(move || runner.health());
        match timeout(SAYS_WITHIN, asked).await {
            Ok(Ok(Health::Failed(reason))) => format!("{why}: {}", in_a_line(&reason)),
            _ => why,
        }
    }

    /// Waits for the jobs until the drain's time is over, then hands them over.
    async fn leave(&self, jobs: &TaskTracker) {
        jobs.close();
        tokio::select! {
            () = jobs.wait() => {}
            () = self.shared.drain.over() => {
                tracing::info!(jobs = jobs.len(), "the grace is over, handing jobs over");
                // What cannot be handed over in this time comes back when the connection closes.
                let _ = timeout(HAND_OVER, jobs.wait()).await;
            }
        }
        self.shared.publish.close().await;
        self.shared.consume.close().await;
    }
}

fn in_a_line(reason: &str) -> String {
    reason.chars().take(LONGEST_REASON).filter(|c| !c.is_control()).collect()
}

pub(crate) fn random() -> Result<u128, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::System {
        what: "get random bytes",
        source: std::io::Error::other(error.to_string()),
    })?;
    Ok(u128::from_ne_bytes(bytes))
}
