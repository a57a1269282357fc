//! Background probes that keep a worker's health and metrics up to date.

use std::convert::Infallible;
use std::sync::Arc;

use nsbridge_handler::Health as HandlerHealth;
use nsbridge_protocol::topology::{bulk_queue, dead_queue, model_queue};
use nsbridge_queue::Connection;
use tokio::time::{Instant, sleep, timeout};

use crate::observability::metrics::Waiting;
use crate::request::context::WorkerContext;

/// Number of consecutive checks that find the calls without progress before the
/// worker reports that it is unwell.
const UNWELL_AFTER: u32 = 5;

/// Number of consecutive checks that find the calls without progress before the
/// worker exits.
const LEAVE_AFTER: u32 = 30;

/// Keeps health and metrics of a worker up to date for as long as it runs.
pub(crate) async fn run(worker: &WorkerContext) -> Infallible {
    tokio::select! {
        never = follow(worker) => never,
        never = follow_publishing(worker) => never,
        never = ask_handler(worker) => never,
        never = watch_calls(worker) => never,
        never = look_at_broker(worker) => never,
        never = ask_depths(worker) => never,
    }
}

/// Follows the worker's subscription and drain.
async fn follow(worker: &WorkerContext) -> Infallible {
    let mut consuming = worker.consuming.since();
    let draining = async {
        worker.drain.begun().await;
        worker.observability.health.draining();
        std::future::pending::<Infallible>().await
    };
    let following = async {
        loop {
            worker.observability.health.consuming(consuming.borrow_and_update().is_some());
            // The sender belongs to the worker, so the wait cannot fail.
            let _ = consuming.changed().await;
        }
    };
    tokio::select! {
        never = draining => never,
        never = following => never,
    }
}

/// Follows the state of the publishing side.
async fn follow_publishing(worker: &WorkerContext) -> Infallible {
    loop {
        let works = worker.publishing.works();
        worker.observability.health.publishing(works);
        worker.observability.metrics.publish_failing(!works);
        worker.publishing.changed(works).await;
    }
}

/// Checks the handler's health on a thread that may block, until the handler fails.
async fn ask_handler(worker: &WorkerContext) -> Infallible {
    let trouble = loop {
        sleep(worker.timing.health_interval).await;
        let runner = worker.runner.clone();
        let mut asked = tokio::task::spawn_blocking(move || runner.health());
        let mut answer = timeout(worker.timing.health_limit, &mut asked).await.ok();
        if answer.is_none() {
            tracing::warn!("the handler does not say whether it is well");
            worker.observability.health.handler(false);
            answer = Some(asked.await);
        }
        match answer {
            Some(Ok(HandlerHealth::Ok)) => worker.observability.health.handler(true),
            Some(Ok(HandlerHealth::Failed(reason))) => break reason,
            _ => break "it panicked".to_owned(),
        }
    };
    worker.observability.health.handler(false);
    worker.unwell(&trouble);
    std::future::pending().await
}

/// Watches for calls that ignore their stop, and for a shared thread that makes no progress. The
/// worker exits if either lasts too long, because it cannot end such calls.
///
/// Checks are counted instead of time, because a suspended process has missed only one check.
async fn watch_calls(worker: &WorkerContext) -> Infallible {
    let (mut still, mut last_beat) = (0, None);
    loop {
        sleep(worker.timing.probe_interval).await;
        let beat = worker.runner.pulse();
        let no_beat = beat.is_some() && beat == last_beat;
        last_beat = beat;
        let leftover = worker.runner.leftover();
        worker.observability.metrics.leftover(leftover);
        still = if no_beat || 2 * leftover >= worker.runner.slots() { still + 1 } else { 0 };
        let well = still < UNWELL_AFTER;
        if well == worker.calls_stand_still() {
            worker.observability.health.calls(well);
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
            worker.leave("its calls stood still");
            if no_beat {
                // None of the calls will end.
                worker.drain.by(Instant::now());
            }
        }
    }
}

async fn look_at_broker(worker: &WorkerContext) -> Infallible {
    loop {
        worker.observability.metrics.blocked(worker.publish.is_blocked());
        sleep(worker.timing.probe_interval).await;
    }
}

/// Reads the depth of the queues while there is a connection. It opens none for this.
async fn ask_depths(worker: &WorkerContext) -> Infallible {
    let mut consuming = worker.consuming.since();
    let queues = [
        (Waiting::Requests, model_queue(&worker.model)),
        (Waiting::Bulk, bulk_queue(&worker.model)),
        (Waiting::Dead, dead_queue(&worker.model)),
    ];
    loop {
        let _ = consuming.wait_for(Option::is_some).await;
        let asked = Instant::now();
        if let Ok(connection) = worker.consume.try_connection().await {
            for (which, queue) in &queues {
                tell_depth(worker, &connection, *which, queue).await;
            }
        }
        tokio::time::sleep_until(asked + worker.timing.depth_interval).await;
    }
}

async fn tell_depth(
    worker: &WorkerContext,
    connection: &Arc<dyn Connection>,
    which: Waiting,
    queue: &str,
) {
    match connection.depth(queue).await {
        Ok(depth) => worker.observability.metrics.waiting(which, depth.messages),
        Err(error) => tracing::debug!(%error, queue, "a queue's depth could not be asked"),
    }
}
