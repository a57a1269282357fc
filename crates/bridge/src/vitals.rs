//! Metrics, health and spans of a worker, and the tasks that keep them up to date.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_handler::Health as HandlerHealth;
use nsbridge_protocol::topology::{dead_queue, model_queue};
use nsbridge_protocol::{Fingerprint, ModelName, Revision};
use nsbridge_queue::Connection;
use tokio::time::{Instant, sleep, timeout};

use crate::health::Health;
use crate::metrics::{Metrics, Waiting};
use crate::telemetry::Spans;
use crate::worker::Shared;

/// Polling interval of the broker's state and of the handler's calls.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Polling interval of the queues' depth.
const DEPTH_EVERY: Duration = Duration::from_secs(15);

/// Interval between two health checks of the handler.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(5);

/// Time limit of a health check; then the handler counts as unwell until it answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Number of consecutive checks, one per second, that find the calls without progress before the
/// worker reports that it is unwell.
const UNWELL_AFTER: u32 = 5;

/// Number of consecutive checks, one per second, that find the calls without progress before the
/// worker exits.
const LEAVE_AFTER: u32 = 30;

/// Metrics, health and spans of a worker. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Vitals {
    /// Counters, gauges and timings.
    pub metrics: Metrics,
    /// State of the health pages.
    pub health: Health,
    /// Destination of the worker's spans.
    pub spans: Spans,
}

impl Vitals {
    /// Creates vitals whose spans are not collected. The worker counts as dead after 60 s without a
    /// subscription.
    pub fn new(model: &ModelName) -> Self {
        Self {
            metrics: Metrics::new(model),
            health: Health::new(model.clone(), Duration::from_secs(60)),
            spans: Spans::default(),
        }
    }

    /// Records that the handler is loaded and warmed up.
    pub(crate) fn loaded(&self, fingerprint: Option<Fingerprint>, revision: Option<&Revision>) {
        self.metrics.loaded(fingerprint, revision);
        self.health.loaded(fingerprint, revision.cloned());
    }
}

/// Keeps the vitals of a worker up to date for as long as it runs.
pub(crate) async fn rounds(shared: &Shared) -> Infallible {
    tokio::select! {
        never = follow(shared) => never,
        never = ask_handler(shared) => never,
        never = watch_calls(shared) => never,
        never = look_at_broker(shared) => never,
        never = ask_depths(shared) => never,
    }
}

/// Follows the worker's subscription and drain.
async fn follow(shared: &Shared) -> Infallible {
    let mut consuming = shared.consuming.since();
    let draining = async {
        shared.drain.begun().await;
        shared.vitals.health.draining();
        std::future::pending::<Infallible>().await
    };
    let following = async {
        loop {
            shared.vitals.health.consuming(consuming.borrow_and_update().is_some());
            // The sender belongs to the worker, so the wait cannot fail.
            let _ = consuming.changed().await;
        }
    };
    tokio::select! {
        never = draining => never,
        never = following => never,
    }
}

/// Checks the handler's health on a thread that may block, until the handler fails.
async fn ask_handler(shared: &Shared) -> Infallible {
    let trouble = loop {
        sleep(ASK_EVERY).await;
        let runner = shared.runner.clone();
        let mut asked = tokio::task::spawn_blocking(move || runner.health());
        let mut answer = timeout(ANSWER_WITHIN, &mut asked).await.ok();
        if answer.is_none() {
            tracing::warn!("the handler does not say whether it is well");
            shared.vitals.health.handler(false);
            answer = Some(asked.await);
        }
        match answer {
            Some(Ok(HandlerHealth::Ok)) => shared.vitals.health.handler(true),
            Some(Ok(HandlerHealth::Failed(reason))) => break reason,
            _ => break "it panicked when it was asked".to_owned(),
        }
    };
    shared.vitals.health.handler(false);
    shared.unwell(&trouble);
    std::future::pending().await
}

/// Watches for calls that ignore their stop, and for a shared thread that makes no progress. The
/// worker exits if either lasts too long, because it cannot end such calls.
///
/// Checks are counted instead of time, because a suspended process has missed only one check.
async fn watch_calls(shared: &Shared) -> Infallible {
    let (mut still, mut last_beat) = (0, None);
    loop {
        sleep(LOOK_EVERY).await;
        let beat = shared.runner.pulse();
        let no_beat = beat.is_some() && beat == last_beat;
        last_beat = beat;
        let leftover = shared.runner.leftover();
        shared.vitals.metrics.leftover(leftover);
        still = if no_beat || 2 * leftover >= shared.runner.slots() { still + 1 } else { 0 };
        let well = still < UNWELL_AFTER;
        if well == shared.calls_stand_still() {
            shared.vitals.health.calls(well);
            if well {
                tracing::info!("the handler's calls go on");
            } else {
                tracing::error!(
                    leftover,
                    "the handler's calls stand still: it blocks its thread, or takes no notice of stops"
                );
            }
        }
        if still == LEAVE_AFTER {
            shared.leave("its calls stood still");
            if no_beat {
                // None of the calls will end.
                shared.drain.by(Instant::now());
            }
        }
    }
}

async fn look_at_broker(shared: &Shared) -> Infallible {
    loop {
        shared.vitals.metrics.blocked(shared.publish.is_blocked());
        sleep(LOOK_EVERY).await;
    }
}

/// Reads the depth of the queues while there is a connection. It opens none for this.
async fn ask_depths(shared: &Shared) -> Infallible {
    let mut consuming = shared.consuming.since();
    let queues = [
        (Waiting::Requests, model_queue(&shared.model)),
        (Waiting::Dead, dead_queue(&shared.model)),
    ];
    loop {
        let _ = consuming.wait_for(Option::is_some).await;
        let asked = Instant::now();
        if let Ok(connection) = shared.consume.try_connection().await {
            for (which, queue) in &queues {
                tell_depth(shared, &connection, *which, queue).await;
            }
        }
        tokio::time::sleep_until(asked + DEPTH_EVERY).await;
    }
}

async fn tell_depth(
    shared: &Shared,
    connection: &Arc<dyn Connection>,
    which: Waiting,
    queue: &str,
) {
    match connection.depth(queue).await {
        Ok(depth) => shared.vitals.metrics.waiting(which, depth.messages),
        Err(error) => tracing::debug!(%error, queue, "a queue's depth could not be asked"),
    }
}
