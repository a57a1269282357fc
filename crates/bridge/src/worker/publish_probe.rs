//! Probe of the publishing side: keeps its connection open, and finds out if replies can be published.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_base::random::random;
use nsbridge_protocol::topology::{PROBE_KEY, REPLY_EXCHANGE};
use nsbridge_queue::{Connection, Error, Message, Result};
use tokio::time::{sleep, timeout};

use crate::request::context::WorkerContext;

/// Polling interval of the alarm while a probe waits for its confirm.
const BLOCKED_POLL: Duration = Duration::from_millis(100);

/// Keeps the state of the publishing side up to date for as long as the worker runs. A probe is due
/// at the start, when the connection is lost, and when a stream's channel was lost or could not be
/// opened.
pub(super) async fn run(worker: &WorkerContext) -> Infallible {
    loop {
        let connection = probe_until_success(worker).await;
        if !worker.publishing.works() {
            tracing::info!("replies can be published");
            worker.publishing.set_works(true);
        }
        tokio::select! {
            () = worker.publishing.doubted() => {}
            _ = connection.lost() => {}
        }
    }
}

/// Probes until a probe succeeds. If that takes too long, no reply can be published meanwhile.
async fn probe_until_success(worker: &WorkerContext) -> Arc<dyn Connection> {
    let probing = async {
        let mut pauses = worker.timing.publish_retry.pauses();
        loop {
            match probe(worker).await {
                Ok(connection) => return connection,
                Err(error) => tracing::warn!(%error, "a publisher was refused, trying again"),
            }
            restore(worker).await;
            sleep(pauses.next(random())).await;
        }
    };
    let outage = async {
        sleep(worker.timing.max_publish_outage).await;
        if worker.publishing.works() {
            tracing::error!(
                "no reply can be published: requests are given back, and none is taken"
            );
        }
        worker.publishing.set_works(false);
        pending::<Infallible>().await
    };
    tokio::select! {
        connection = probing => connection,
        never = outage => match never {},
    }
}

/// Publishes a message that the broker returns, on a new channel: a broker may keep the permissions of
/// an open one. A broker that blocks publishers takes the message later, which is no failure.
async fn probe(worker: &WorkerContext) -> Result<Arc<dyn Connection>> {
    let connection = worker.publish.connection().await;
    let publisher = connection.publisher().await?;
    let confirm = publisher.publish(REPLY_EXCHANGE, PROBE_KEY, Message::new(Vec::new())).await?;
    let limit = worker.timing.publish_probe_limit;
    tokio::select! {
        confirmed = timeout(limit, confirm) => {
            confirmed.map_err(|_| unconfirmed(limit))??;
            worker.publish.give_back(publisher);
        }
        () = blocked(&*connection) => {}
    }
    Ok(connection)
}

fn unconfirmed(limit: Duration) -> Error {
    Error::Lost { reason: format!("no publisher confirm within {} s", limit.as_secs_f64()) }
}

async fn blocked(connection: &dyn Connection) {
    while !connection.is_blocked() {
        sleep(BLOCKED_POLL).await;
    }
}

/// Declares the queues and exchanges, which may have been deleted.
async fn restore(worker: &WorkerContext) {
    if worker.consuming.since().borrow().is_some()
        && let Ok(connection) = worker.consume.try_connection().await
    {
        drop(connection.declare_model(&worker.model).await);
    }
}
