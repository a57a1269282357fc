//! Peers that stream a reply by HTTP.

use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tempfile::{NamedTempFile, TempDir};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::http::Connection;
use crate::script::{folder, interpreter, last_words};
use crate::stamp::{delays, now};

/// Time limit of the start, with the import of the package.
const START: Duration = Duration::from_secs(120);

/// Time limit for the exit of a server.
const GOODBYE: Duration = Duration::from_secs(10);

/// Server that answers `POST /predict` with a stream.
pub(super) struct Served {
    server: Child,
    connection: Connection,
    log: NamedTempFile,
    /// Folder for the files of the server itself.
    _home: TempDir,
}

impl Served {
    pub(super) async fn litserve() -> Result<Self> {
        let script = folder().join("litserve_peer.py");
        Self::start(|port| vec![script.display().to_string(), port]).await
    }

    pub(super) async fn bentoml() -> Result<Self> {
        let words = ["-m", "bentoml", "serve", "bentoml_peer:Flood", "--working-dir"];
        let folder = folder().display().to_string();
        let arguments = |port| {
            let place = [folder, "--host".into(), "127.0.0.1".into(), "--port".into(), port];
            words.map(str::to_owned).into_iter().chain(place).collect()
        };
        Self::start(arguments).await
    }

    /// Starts Python with the arguments for a free port, and waits for its first answer.
    async fn start(arguments: impl FnOnce(String) -> Vec<String>) -> Result<Self> {
        let python = interpreter()?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let (log, home) = (NamedTempFile::new()?, tempfile::tempdir()?);
        let mut command = Command::new(&python);
        command
            .arg(folder().join("until_closed.py"))
            .arg(&python)
            .args(arguments(address.port().to_string()))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("BENTOML_HOME", home.path())
            .env("BENTOML_DO_NOT_TRACK", "true")
            .current_dir(home.path())
            .stdin(Stdio::piped())
            .stdout(log.reopen()?)
            .stderr(log.reopen()?);
        let mut server = command.spawn().context("starting Python")?;
        let connection = timeout(START, first_answer(address, &mut server)).await;
        match connection.context("it gave no answer within two minutes").flatten() {
            Ok(connection) => Ok(Self { server, connection, log, _home: home }),
            Err(error) => Err(error.context(last_words(&log))),
        }
    }

    pub(super) async fn pieces_per_s(&mut self, pieces: usize, bytes: usize) -> Result<f64> {
        self.reconnect().await?;
        let started = Instant::now();
        let times = self.ask(pieces, bytes, 0).await?;
        ensure!(times.len() == pieces, "{} of {pieces} pieces came", times.len());
        Ok(pieces as f64 / started.elapsed().as_secs_f64())
    }

    pub(super) async fn first_ms(&mut self, requests: usize, bytes: usize) -> Result<Vec<f64>> {
        self.reconnect().await?;
        let mut times = Vec::new();
        for _ in 0..requests {
            let started = Instant::now();
            self.post(1, bytes, 0).await?;
            while self.part().await?.context("it ended without a piece")?.is_empty() {}
            times.push(started.elapsed().as_secs_f64() * 1000.0);
            while self.part().await?.is_some() {}
        }
        Ok(times)
    }

    /// Returns the time from each `yield` to its arrival.
    pub(super) async fn piece_ms(
        &mut self,
        pieces: usize,
        bytes: usize,
        every_ms: u64,
    ) -> Result<Vec<f64>> {
        self.reconnect().await?;
        let times = self.ask(pieces, bytes, every_ms).await?;
        ensure!(times.len() == pieces, "{} of {pieces} pieces came", times.len());
        Ok(times)
    }

    pub(super) async fn stop(mut self) {
        drop(self.server.stdin.take());
        let _ = timeout(GOODBYE, self.server.wait()).await;
    }

    /// Opens a new connection, since servers close one that was idle for some seconds.
    async fn reconnect(&mut self) -> Result<()> {
        self.connection = Connection::open(self.connection.address).await?;
        Ok(())
    }

    async fn ask(&mut self, pieces: usize, bytes: usize, every_ms: u64) -> Result<Vec<f64>> {
        self.post(pieces, bytes, every_ms).await?;
        let mut times = Vec::new();
        while let Some(part) = self.part().await? {
            times.extend(part);
        }
        Ok(times)
    }

    async fn post(&mut self, pieces: usize, bytes: usize, every_ms: u64) -> Result<()> {
        post(&mut self.connection, pieces, bytes, every_ms).await
    }

    /// Returns the ages of the pieces in the next part of the body; `None` at its end.
    async fn part(&mut self) -> Result<Option<Vec<f64>>> {
        let part = timeout(START, self.connection.part()).await;
        let part = part.context("it sent nothing for two minutes")?;
        let part = part.with_context(|| last_words(&self.log))?;
        Ok(part.map(|data| delays(&data, now()).collect()))
    }
}

async fn post(to: &mut Connection, pieces: usize, bytes: usize, every_ms: u64) -> Result<()> {
    let order = json!({ "pieces": pieces, "bytes": bytes, "every_ms": every_ms });
    to.post("/predict", &order.to_string()).await
}

/// Connects to the server and reads the answer to its first request.
async fn first_answer(address: SocketAddr, server: &mut Child) -> Result<Connection> {
    loop {
        if let Some(status) = server.try_wait()? {
            bail!("it ended: {status}");
        }
        sleep(Duration::from_millis(100)).await;
        let Ok(mut connection) = Connection::open(address).await else { continue };
        // Some servers listen before they can answer.
        if post(&mut connection, 1, 64, 0).await.is_err() {
            continue;
        }
        while connection.part().await?.is_some() {}
        return Ok(connection);
    }
}
