//! State that all jobs of a worker share.

use std::sync::Arc;

use nsbridge_base::random;
use nsbridge_crypto::KeyProvider;
use nsbridge_handler::transcript::Reader;
use nsbridge_protocol::topology::control_queue;
use nsbridge_protocol::{Fingerprint, ModelName, Revision};
use nsbridge_queue::ReconnectingConnection;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::ReplyConfig;
use crate::drain::Drain;
use crate::error::Error;
use crate::observability::Observability;
use crate::request::admission::AdmittedRequest;
use crate::request::channel_pool::ChannelPool;
use crate::request::delivery_trace::DeliveryTrace;
use crate::request::in_flight::InFlight;
use crate::request::intake_pause::IntakePause;
use crate::request::publishing::Publishing;
use crate::request::reply_stream::ReplyContext;
use crate::request::runner::Runner;
use crate::request::slots::{Claim, SlotPool};
use crate::timing::Timing;

/// Maximum number of characters of a handler's reason that are logged.
const LONGEST_REASON: usize = 300;

/// State shared by all jobs of a worker.
#[derive(Debug)]
pub(crate) struct WorkerContext {
    pub(crate) model: ModelName,
    pub(crate) revision: Option<Revision>,
    pub(crate) name: String,
    /// Name of the current session's control queue. Each session draws a new name, because the
    /// broker may keep the queue of an earlier session until it notices that session's lost
    /// connection.
    pub(crate) control_queue: Mutex<String>,
    pub(crate) reply: ReplyConfig,
    /// True if the worker takes bulk requests.
    pub(crate) bulk: bool,
    /// True if the errors of the handler are logged.
    pub(crate) show_errors: bool,
    pub(crate) keys: Arc<dyn KeyProvider>,
    pub(crate) runner: Runner,
    /// Fingerprint of the handler after it was loaded.
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) in_flight: InFlight,
    pub(crate) slots: Arc<SlotPool>,
    /// Connection that consumes, acks, and keeps the run records. It never publishes.
    pub(crate) consume: ReconnectingConnection,
    pub(crate) publish: ChannelPool,
    pub(crate) publishing: Publishing,
    pub(crate) drain: Drain,
    pub(crate) consuming: Consuming,
    pub(crate) intake: IntakePause,
    pub(crate) observability: Observability,
    pub(crate) timing: Timing,
    /// Reason why the handler cannot go on; `None` while it works.
    pub(crate) broken: watch::Sender<Option<String>>,
    /// Canceled when the handler itself reported that it failed. Its calls may then never return.
    pub(crate) unwell: CancellationToken,
}

impl WorkerContext {
    pub(crate) fn reply_context<'a>(
        &'a self,
        request: &'a AdmittedRequest,
        trace: &'a DeliveryTrace,
        reader: &'a Reader,
        claim: &'a Claim,
        overdue: CancellationToken,
    ) -> ReplyContext<'a> {
        ReplyContext {
            pool: &self.publish,
            publishing: &self.publishing,
            config: &self.reply,
            reply_to: &request.reply_to,
            control_queue: &self.control_queue,
            worker: &self.name,
            revision: self.revision.as_ref(),
            root: &request.reply_root,
            request: request.job_key.id,
            fingerprint: self.fingerprint,
            trace,
            reader,
            claim,
            timing: &self.timing,
            overdue,
        }
    }

    /// Draws the name of a session's control queue. Streams opened from now on carry it.
    pub(crate) fn name_control_queue(&self) -> Result<String, Error> {
        let name = control_queue(random()?);
        self.control_queue.lock().clone_from(&name);
        Ok(name)
    }

    /// Reports the handler as broken: the worker requeues its jobs and exits.
    pub(crate) fn leave(&self, why: &str) {
        self.broken.send_replace(Some(why.to_owned()));
    }

    /// Handles the handler's own report that it failed. None of its jobs will end, so the worker
    /// drains without a grace period.
    pub(crate) fn unwell(&self, reason: &str) {
        self.leave(&format!("its health check failed: {}", in_a_line(reason)));
        self.unwell.cancel();
        self.drain.by(Instant::now());
    }

    /// Returns true while the handler's calls make no progress.
    pub(crate) fn calls_stand_still(&self) -> bool {
        self.observability.health.calls_stand_still()
    }

    /// Waits until the handler is broken.
    pub(crate) async fn handler_broke(&self) {
        // The sender belongs to `self`, so the wait cannot fail.
        let _ = self.broken.subscribe().wait_for(Option::is_some).await;
    }
}

/// Start time of the current subscription; `None` while there is none.
#[derive(Debug, Default)]
pub(crate) struct Consuming(watch::Sender<Option<Instant>>);

impl Consuming {
    /// Returns a receiver of the time since which the worker is subscribed; `None` while it is not.
    pub(crate) fn since(&self) -> watch::Receiver<Option<Instant>> {
        self.0.subscribe()
    }

    /// Marks the worker as subscribed until the returned guard is dropped.
    pub(crate) fn begin(&self) -> Begun<'_> {
        let since = Instant::now();
        self.0.send_replace(Some(since));
        Begun { consuming: self, since }
    }
}

/// A subscription, until this is dropped.
pub(crate) struct Begun<'a> {
    consuming: &'a Consuming,
    since: Instant,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        // The next session may have begun before the end of this one was noticed.
        self.consuming.0.send_if_modified(|since| {
            let ours = *since == Some(self.since);
            if ours {
                *since = None;
            }
            ours
        });
    }
}

pub(crate) fn in_a_line(reason: &str) -> String {
    reason.chars().take(LONGEST_REASON).filter(|c| !c.is_control()).collect()
}

fn random() -> Result<u128, Error> {
    let none =
        |error| Error::System { what: "get random bytes", source: std::io::Error::other(error) };
    random::bytes().map(u128::from_ne_bytes).map_err(none)
}
