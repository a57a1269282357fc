//! Time from a client's cancel to the failing `emit` of the handler.

use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nsbridge_handler::{AsyncHandler, AsyncJob, Finish, Models};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{interval, timeout};

use crate::flood::Order;
use crate::ours::System;
use nsbridge_bench::report::{Report, Row, percentile};

/// Interval between two pieces of the handler.
const STEP: Duration = Duration::from_millis(10);

const REQUESTS: usize = 200;

/// Part of [`STEP`] between the points of two requests, the golden ratio: any number of requests in a
/// row covers the interval evenly.
const PART: f64 = 0.618_033_988_749_895;

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
        // An interval, not a pause after each piece: the points of the requests cover exactly one
        // period, so the time that a piece takes to the client does not shift the result.
        let mut step = interval(STEP);
        for _ in 0..order.pieces {
            step.tick().await;
            if let Err(stop) = job.emit("x".repeat(order.bytes)).await {
                STOPPED.send_replace(Some(Instant::now()));
                return Err(stop.into());
            }
        }
        Ok(Finish::STOP)
    }

    fn tasks(&self) -> usize {
        super::STREAMS
    }
}

/// Way in which a client abandons its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// A cancel.
    Cancel,
    /// The drop of the reply.
    Drop,
}

/// Worker whose replies are abandoned.
pub(crate) struct Stops {
    system: System,
    asked: u32,
}

impl Stops {
    pub(crate) async fn start(url: &str) -> Result<Self> {
        Ok(Self { system: System::start::<Patter>(url).await?, asked: 0 })
    }

    /// Returns the times from the end of the client's interest to the stop, in milliseconds.
    pub(crate) async fn stop_ms(&mut self, way: Way, requests: usize) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for _ in 0..requests {
            self.asked += 1;
            let point = STEP.mul_f64(f64::from(self.asked) * PART % 1.0);
            times.push(stop_ms(&self.system, way, point).await?);
        }
        Ok(times)
    }

    pub(crate) async fn stop(self) -> Result<()> {
        self.system.stop().await
    }
}

pub(crate) async fn rows(url: &str, report: &mut Report) -> Result<()> {
    for (name, way) in [("cancel", Way::Cancel), ("gone", Way::Drop)] {
        let mut stops = Stops::start(url).await?;
        let mut times = stops.stop_ms(way, REQUESTS).await?;
        stops.stop().await?;
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
async fn stop_ms(system: &System, way: Way, point: Duration) -> Result<f64> {
    let mut reply = system.submit(10_000).await?;
    for _ in 0..3 {
        reply.next().await.context("no piece came")??;
    }
    // The runtime's timers fire at whole milliseconds, as those of the handler do.
    spawn_blocking(move || thread::sleep(point)).await?;
    let mut stopped = STOPPED.subscribe();
    stopped.borrow_and_update();
    let left = Instant::now();
    match way {
        Way::Cancel => {
            reply.cancel();
            drop(reply);
        }
        Way::Drop => drop(reply),
    }
    timeout(Duration::from_secs(30), stopped.changed()).await.context("it was not stopped")??;
    let stopped = stopped.borrow().context("a stop has a time")?;
    Ok(stopped.duration_since(left).as_secs_f64() * 1000.0)
}
