//! Background probes that keep a worker's health and metrics up to date.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_handler::Health as HandlerHealth;
use nsbridge_protocol::topology::{dead_queue, model_queue};
use nsbridge_queue::Connection;
use tokio::time::{Instant, sleep, timeout};

use crate::context::Shared;
use crate::metrics::Waiting;
use crate::runner::ASK_EVERY;

/// How often the broker's state is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often the queues' depth is asked for.
const DEPTH_EVERY: Duration = Duration::from_secs(15);

/// How long it may think about that.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Looks in a row, a second apart, at which calls stood still before the worker says that it is not
/// well.
const UNWELL_AFTER: u32 = 5;

/// The same before the worker leaves.
const LEAVE_AFTER: u32 = 30;

/// Keeps a worker's vitals true, for as long as it runs.
pub(crate) async fn run(shared: &Shared) -> Infallible {
    tokio::select! {
        never = follow(shared) => never,
        never = ask_handler(shared) => never,
        never = watch_calls(shared) => never,
        never = look_at_broker(shared) => never,
        never = ask_depths(shared) => never,
    }
}

/// Follows what the worker does.
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
            // The sender is the worker's.
            let _ = consuming.changed().await;
        }
    };
    tokio::select! {
        never = draining => never,
        never = following => never,
    }
}

/// Asks the handler whether it is well, from a thread that may block, until it is not.
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

/// Watches whether calls end when they are told to, and whether the thread that they share gets to
/// its work. The worker leaves when that is not so for too long: it cannot end such a call.
///
/// It counts looks rather than time: a process that was suspended has missed one look.
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
                // None of them will come to an end.
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

/// Asks how much waits, while there is a connection: it is not opened for this.
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
