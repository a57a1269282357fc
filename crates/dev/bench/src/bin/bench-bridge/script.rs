//! Peer in Python: a process that reads orders as JSON lines and answers each with a JSON line.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// Time limit of an order; the first one includes the peer's start.
const ORDER_TIMEOUT: Duration = Duration::from_secs(120);

/// Time limit for the exit of a peer.
const GOODBYE: Duration = Duration::from_secs(10);

pub(crate) struct Script {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    log: NamedTempFile,
}

#[derive(Deserialize)]
struct Rate {
    per_s: f64,
}

#[derive(Deserialize)]
struct Times {
    ms: Vec<f64>,
}

/// Returns the path of the Python in the peers' environment.
pub(crate) fn interpreter() -> Result<String> {
    if let Ok(why) = std::env::var("NSBRIDGE_BENCH_NO_PEERS") {
        bail!("{why}");
    }
    std::env::var("NSBRIDGE_BENCH_PYTHON")
        .context("NSBRIDGE_BENCH_PYTHON names no Python: run `cargo xtask bench bridge`")
}

/// Returns the folder of the scripts.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/bin/bench-bridge/peers")
}

/// Returns a command for a script of this benchmark in the peers' Python environment.
pub(crate) fn python(program: &str) -> Result<Command> {
    let mut command = Command::new(interpreter()?);
    command.arg(folder().join(program)).env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

/// Returns the last line that a peer wrote to its log.
pub(crate) fn last_words(log: &NamedTempFile) -> String {
    let log = std::fs::read_to_string(log.path()).unwrap_or_default();
    log.trim().lines().last().unwrap_or("without a word").to_owned()
}

impl Script {
    pub(crate) async fn start(program: &str, url: &str) -> Result<Self> {
        let log = NamedTempFile::new()?;
        let mut command = python(program)?;
        command.arg(url).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log.reopen()?);
        let mut process = command.spawn().context("starting Python")?;
        let orders = process.stdin.take().context("its input is a pipe")?;
        let answers = BufReader::new(process.stdout.take().context("its output is a pipe")?);
        let mut script = Self { process, orders, answers, log };
        // A peer that does not work here fails now and not during the measurement.
        script.first_ms(1, 1).await?;
        Ok(script)
    }

    pub(crate) async fn chunks_per_s(
        &mut self,
        streams: usize,
        chunks: usize,
        bytes: usize,
    ) -> Result<f64> {
        let order = json!({ "do": "chunks", "streams": streams, "chunks": chunks, "bytes": bytes });
        Ok(self.ask::<Rate>(&order).await?.per_s)
    }

    pub(crate) async fn first_ms(&mut self, requests: usize, bytes: usize) -> Result<Vec<f64>> {
        let order = json!({ "do": "first", "requests": requests, "bytes": bytes });
        Ok(self.ask::<Times>(&order).await?.ms)
    }

    /// Closes the script's input, which ends the script and its worker, and waits for the exit.
    pub(crate) async fn stop(mut self) {
        drop(self.orders);
        let _ = timeout(GOODBYE, self.process.wait()).await;
    }

    async fn ask<T: DeserializeOwned>(&mut self, order: &Value) -> Result<T> {
        let _ = self.orders.write_all(format!("{order}\n").as_bytes()).await;
        let mut line = String::new();
        let read = timeout(ORDER_TIMEOUT, self.answers.read_line(&mut line)).await;
        if read.context("it gave no answer within two minutes")?? == 0 {
            bail!("it ended: {}", last_words(&self.log));
        }
        serde_json::from_str(&line).context("it gave another answer than asked for")
    }
}
