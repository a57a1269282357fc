//! RunPod SDK worker, and the API that it calls: a small HTTP server in this process.
//!
//! The worker takes jobs by long polls and posts each yield separately, over persistent
//! connections. The server does as little as possible, so the measurement covers the SDK.

use std::collections::{HashMap, VecDeque};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::script::python;
use crate::stamp::{delays, now};

/// Time for which a poll without a job is held open.
const POLL: Duration = Duration::from_secs(20);

/// Time limit of a request; the first one includes the worker's start.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Runpod {
    worker: Child,
    api: Arc<Api>,
    next: usize,
}

#[derive(Default)]
struct Api {
    state: Mutex<State>,
    submitted: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Value>,
    running: HashMap<String, mpsc::UnboundedSender<Post>>,
}

/// Message that the worker posted.
#[derive(Debug)]
enum Post {
    /// Yield of the handler, with its body and the time of its arrival.
    Chunk(Vec<u8>, u64),
    Done,
}

impl Runpod {
    pub(crate) async fn start() -> Result<Self> {
        let mut command = python("runpod_worker.py")?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let at = format!("http://{}/v2/bench", listener.local_addr()?);
        let api = Arc::new(Api::default());
        tokio::spawn(api.clone().listen(listener));
        command
            .env("RUNPOD_WEBHOOK_GET_JOB", format!("{at}/job-take/$ID?gpu=none"))
            .env(
                "RUNPOD_WEBHOOK_POST_STREAM",
                format!("{at}/job-stream/$RUNPOD_POD_ID/$ID?gpu=none"),
            )
            .env("RUNPOD_WEBHOOK_POST_OUTPUT", format!("{at}/job-done/$RUNPOD_POD_ID/$ID?gpu=none"))
            .env("RUNPOD_LOG_LEVEL", "ERROR")
            // These variables skip the SDK's checks of network, GPU and memory at the start.
            .env("RUNPOD_SKIP_AUTO_SYSTEM_CHECKS", "true")
            .env("RUNPOD_SKIP_GPU_CHECK", "true")
            .kill_on_drop(true)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let worker = command.spawn().context("starting Python")?;
        let mut runpod = Self { worker, api, next: 0 };
        runpod.first_ms(1, 1).await?;
        Ok(runpod)
    }

    pub(crate) async fn chunks_per_s(
        &mut self,
        streams: usize,
        chunks: usize,
        bytes: usize,
    ) -> Result<f64> {
        let started = Instant::now();
        let jobs: Vec<_> = (0..streams).map(|_| self.submit(chunks, bytes, 0)).collect();
        for mut posts in jobs {
            let mut count = 0;
            while matches!(self.post(&mut posts).await?, Post::Chunk(..)) {
                count += 1;
            }
            ensure!(count == chunks, "{count} of {chunks} chunks came");
        }
        Ok((streams * chunks) as f64 / started.elapsed().as_secs_f64())
    }

    pub(crate) async fn first_ms(&mut self, requests: usize, bytes: usize) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for _ in 0..requests {
            let started = Instant::now();
            let mut posts = self.submit(1, bytes, 0);
            let first = self.post(&mut posts).await?;
            ensure!(matches!(first, Post::Chunk(..)), "it ended without a chunk");
            times.push(started.elapsed().as_secs_f64() * 1000.0);
            self.post(&mut posts).await?;
        }
        Ok(times)
    }

    /// Returns the time from each yield to its arrival.
    pub(crate) async fn piece_ms(
        &mut self,
        pieces: usize,
        bytes: usize,
        every_ms: u64,
    ) -> Result<Vec<f64>> {
        let mut posts = self.submit(pieces, bytes, every_ms);
        let mut times = Vec::new();
        while let Post::Chunk(body, at) = self.post(&mut posts).await? {
            times.extend(delays(&body, at));
        }
        ensure!(times.len() == pieces, "{} of {pieces} pieces came", times.len());
        Ok(times)
    }

    pub(crate) async fn stop(mut self) {
        let _ = self.worker.kill().await;
    }

    fn submit(
        &mut self,
        pieces: usize,
        bytes: usize,
        every_ms: u64,
    ) -> mpsc::UnboundedReceiver<Post> {
        let (sender, posts) = mpsc::unbounded_channel();
        self.next += 1;
        let id = format!("job-{}", self.next);
        let input = json!({ "pieces": pieces, "bytes": bytes, "every_ms": every_ms });
        let job = json!({ "id": id, "input": input });
        let mut state = self.api.state();
        state.running.insert(id, sender);
        state.waiting.push_back(job);
        drop(state);
        self.api.submitted.notify_one();
        posts
    }

    async fn post(&mut self, posts: &mut mpsc::UnboundedReceiver<Post>) -> Result<Post> {
        let post = tokio::select! {
            post = timeout(REQUEST_TIMEOUT, posts.recv()) => post,
            ended = self.worker.wait() => anyhow::bail!("its worker ended: {}", ended?),
        };
        post.context("it posted nothing for a minute")?.context("the job is gone")
    }
}

impl Api {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn listen(self: Arc<Self>, listener: TcpListener) {
        while let Ok((socket, _)) = listener.accept().await {
            // If a connection breaks, the worker has to open a new one.
            tokio::spawn(self.clone().serve(socket));
        }
    }

    async fn serve(self: Arc<Self>, socket: TcpStream) -> Result<()> {
        socket.set_nodelay(true)?;
        let (read, mut write) = socket.into_split();
        let mut read = BufReader::new(read);
        while let Some((path, body)) = request(&mut read).await? {
            let answer = match self.answer(&path, body).await {
                Some(body) => format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                ),
                None => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            };
            write.write_all(answer.as_bytes()).await?;
        }
        Ok(())
    }

    async fn answer(&self, path: &str, body: Vec<u8>) -> Option<String> {
        let at = now();
        let (route, query) = path.split_once('?').unwrap_or((path, ""));
        if route.contains("/job-take") {
            return timeout(POLL, self.take(query)).await.ok();
        }
        if route.contains("/job-stop") {
            tokio::time::sleep(POLL).await;
            return None;
        }
        let (rest, id) = route.rsplit_once('/')?;
        let post = if rest.contains("/job-stream") { Post::Chunk(body, at) } else { Post::Done };
        if let Some(job) = self.state().running.get(id) {
            let _ = job.send(post);
        }
        Some("{}".to_owned())
    }

    /// Waits for a job; returns as many jobs as are queued, up to the worker's batch size.
    async fn take(&self, query: &str) -> String {
        let size = query.split('&').find_map(|pair| pair.strip_prefix("batch_size=")?.parse().ok());
        loop {
            let submitted = self.submitted.notified();
            let mut jobs = self.waiting(size.unwrap_or(1));
            match (size, jobs.pop()) {
                (_, None) => submitted.await,
                (None, Some(only)) => return only.to_string(),
                (Some(_), Some(last)) => {
                    jobs.push(last);
                    return Value::from(jobs).to_string();
                }
            }
        }
    }

    fn waiting(&self, at_most: usize) -> Vec<Value> {
        let waiting = &mut self.state().waiting;
        let count = waiting.len().min(at_most);
        waiting.drain(..count).collect()
    }
}

/// Reads the next request of a connection and returns its path and its body.
async fn request(from: &mut (impl AsyncBufReadExt + Unpin)) -> Result<Option<(String, Vec<u8>)>> {
    let (mut first, mut length) = (String::new(), 0);
    if from.read_line(&mut first).await? == 0 {
        return Ok(None);
    }
    loop {
        let mut line = String::new();
        from.read_line(&mut line).await?;
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    let path = first.split(' ').nth(1).context("a request without a path")?;
    Ok(Some((path.to_owned(), body)))
}
