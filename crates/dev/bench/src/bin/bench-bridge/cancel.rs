//! Time from a client's cancel to the failing `emit` of the handler.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nsbridge_client::Reply;
use nsbridge_handler::{AsyncHandler, AsyncJob, Finish, Models};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::flood::Order;
use crate::ours::System;
use nsbridge_bench::report::{Report, Row, percentile};

/// Interval between two pieces of the handler.
const STEP: Duration = Duration::from_millis(10);

const REQUESTS: u32 = 200;

/// Time at which a handler last saw a stop. Handler and client share this process and its clock.
static STOPPED: LazyLock<watch::Sender<Option<Instant>>> = LazyLock::new(watch::Sender::default);

/// Handler that emits a piece every [`STEP`] until it is stopped.
#[derive(Debug)]
struct Patter;

impl AsyncHandler for Patter {
    type Options = ();
    type Input = Order;
    type Output = String;

    async fn load((): (), _models: Models) -> nsbridge_handler::Result<Self> {
        Ok(Self)
    }

    async fn handle(
        &self,
        order: Order,
        job: &mut AsyncJob<String>,
    ) -> nsbridge_handler::Result<Finish> {
        for _ in 0..order.pieces {
            if let Err(stop) = job.emit("x".repeat(order.bytes)).await {
                STOPPED.send_replace(Some(Instant::now()));
                return Err(stop.into());
            }
            sleep(STEP).await;
        }
        Ok(Finish::STOP)
    }

    fn tasks(&self) -> usize {
        super::STREAMS
    }
}

/// Way in which a client abandons its reply.
type Leave = fn(Reply<String>);

pub(crate) async fn rows(url: &str, report: &mut Report) -> Result<()> {
    let ways: [(&str, Leave); 2] = [("cancel", |mut reply| reply.cancel()), ("gone", drop)];
    for (name, leave) in ways {
        let system = System::start::<Patter>(url).await?;
        let mut times = Vec::new();
        for request in 0..REQUESTS {
            times.push(stop_ms(&system, leave, STEP * request / REQUESTS).await?);
        }
        system.stop().await?;
        for (percent, share) in [("p50", 0.50), ("p99", 0.99)] {
            report.push(Row {
                name: format!("bridge.{name}_ms_{percent}"),
                value: percentile(&mut times, share),
                unit: "ms",
                better: "lower",
                peer: None,
                peer_value: None,
                ratio: None,
            });
        }
    }
    Ok(())
}

/// Abandons a running reply between two pieces of its handler, `point` after the third piece.
/// Returns the time until the stop in milliseconds.
async fn stop_ms(system: &System, leave: Leave, point: Duration) -> Result<f64> {
    let mut reply = system.submit(10_000).await?;
    for _ in 0..3 {
        reply.next().await.context("no piece came")??;
    }
    sleep(point).await;
    let mut stopped = STOPPED.subscribe();
    stopped.borrow_and_update();
    let left = Instant::now();
    leave(reply);
    timeout(Duration::from_secs(30), stopped.changed()).await.context("it was not stopped")??;
    let stopped = stopped.borrow().context("a stop has a time")?;
    Ok(stopped.duration_since(left).as_secs_f64() * 1000.0)
}
