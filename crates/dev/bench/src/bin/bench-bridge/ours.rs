//! Production worker and client with a benchmark handler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nsbridge_client::{Client, Event, Reply, Request};
use nsbridge_handler::AsyncHandler;
use nsbridge_queue::{AmqpBroker, Broker};
use nsbridge_testkit::system::{Running, Setup};

use crate::PIECE;
use crate::flood::Order;

pub(crate) struct System {
    setup: Setup,
    worker: Running,
    client: Client,
}

impl System {
    pub(crate) async fn start<H: AsyncHandler<Options = ()>>(url: &str) -> Result<Self> {
        let mut setup = Setup::new()?;
        // One frame per piece, because the benchmark counts frames.
        setup.reply.coalesce_ms = 0;
        setup.reply.coalesce_bytes = 1;
        let broker: Arc<dyn Broker> = Arc::new(AmqpBroker::new(url)?);
        let worker = setup.worker_async::<H>(broker, ()).await?;
        let client = setup.client(Arc::new(AmqpBroker::new(url)?)).await?;
        Ok(Self { setup, worker, client })
    }

    pub(crate) async fn frames_per_s(&self, streams: usize, frames: usize) -> Result<f64> {
        let started = Instant::now();
        let mut tasks = Vec::new();
        for _ in 0..streams {
            tasks.push(tokio::spawn(self.submit(frames).await?.collect()));
        }
        let mut chunks = 0;
        for task in tasks {
            chunks += task.await??.1.chunks;
        }
        anyhow::ensure!(chunks == (streams * frames) as u64, "{chunks} frames came");
        Ok(chunks as f64 / started.elapsed().as_secs_f64())
    }

    pub(crate) async fn first_piece_ms(&self, requests: usize) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for _ in 0..requests {
            let started = Instant::now();
            let mut reply = self.submit(1).await?;
            let first = reply.next().await.context("no piece came")??;
            times.push(started.elapsed().as_secs_f64() * 1000.0);
            anyhow::ensure!(matches!(first, Event::Piece(_)), "{first:?} came first");
            reply.collect().await?;
        }
        Ok(times)
    }

    /// Submits a request for `pieces` pieces.
    pub(crate) async fn submit(&self, pieces: usize) -> Result<Reply<String>> {
        let order = Order { pieces, bytes: PIECE };
        let mut ask = Request::new(self.setup.model.clone(), self.setup.tenant()).input(order);
        ask.timeout = Duration::from_secs(120);
        Ok(self.client.submit(ask).await?)
    }

    pub(crate) async fn stop(self) -> Result<()> {
        self.worker.stop().await
    }
}
