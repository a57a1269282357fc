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
use crate::stamp::{delays, now};

/// Frames of a worker's replies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frames {
    /// As many pieces in each as by default.
    Default,
    /// One piece in each.
    OneEach,
}

pub(crate) struct System {
    setup: Setup,
    worker: Running,
    client: Client,
}

impl System {
    /// Starts a worker with one frame per piece, because most rows count frames.
    pub(crate) async fn start<H: AsyncHandler<Options = ()>>(url: &str) -> Result<Self> {
        Self::start_with::<H>(url, (), Frames::OneEach).await
    }

    pub(crate) async fn start_with<H: AsyncHandler>(
        url: &str,
        options: H::Options,
        frames: Frames,
    ) -> Result<Self> {
        let mut setup = Setup::new()?;
        if matches!(frames, Frames::OneEach) {
            setup.reply.coalesce_ms = 0;
            setup.reply.coalesce_bytes = 1;
        }
        let broker: Arc<dyn Broker> = Arc::new(AmqpBroker::new(url)?);
        let worker = setup.worker_async::<H>(broker, options).await?;
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

    /// Returns the pieces per second of one reply.
    pub(crate) async fn pieces_per_s(&self, pieces: usize) -> Result<f64> {
        let started = Instant::now();
        let (received, _) = self.submit(pieces).await?.collect().await?;
        anyhow::ensure!(received.len() == pieces, "{} of {pieces} pieces came", received.len());
        Ok(pieces as f64 / started.elapsed().as_secs_f64())
    }

    /// Returns the time from the making of each piece of a slow reply to its arrival.
    pub(crate) async fn piece_ms(&self, pieces: usize, every_ms: u64) -> Result<Vec<f64>> {
        let mut reply = self.ask(pieces, every_ms).await?;
        let mut times = Vec::new();
        while let Some(event) = reply.next().await {
            if let Event::Piece(piece) = event? {
                times.extend(delays(piece.as_bytes(), now()));
            }
        }
        anyhow::ensure!(times.len() == pieces, "{} of {pieces} pieces came", times.len());
        Ok(times)
    }

    /// Submits a request for `pieces` pieces.
    pub(crate) async fn submit(&self, pieces: usize) -> Result<Reply<String>> {
        self.ask(pieces, 0).await
    }

    async fn ask(&self, pieces: usize, every_ms: u64) -> Result<Reply<String>> {
        let order = Order { pieces, bytes: PIECE, every_ms };
        let mut ask = Request::new(self.setup.model.clone(), self.setup.tenant()).input(order);
        ask.timeout = Duration::from_secs(120);
        Ok(self.client.submit(ask).await?)
    }

    pub(crate) async fn stop(self) -> Result<()> {
        self.worker.stop().await
    }
}
