//! A real HTTP server that answers as a test says, and remembers what it was asked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A request as it came over the wire.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Method and path, such as `GET /a`.
    pub line: String,
    /// By lower-case name.
    pub headers: BTreeMap<String, String>,
    /// As it came.
    pub body: Vec<u8>,
}

impl Seen {
    /// The body as text; empty if it is none.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_default()
    }

    /// A header by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// What is written back.
#[derive(Clone, Debug)]
pub struct Answer(Option<Vec<u8>>);

impl Answer {
    /// An answer with this status and body.
    pub fn new(status: u16, body: &str) -> Self {
        let length = body.len();
        // Each connection ends with its answer: who keeps connections must not count on this one.
        let head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {length}");
        Self(Some(format!("{head}\r\n\r\n{body}").into_bytes()))
    }

    /// These bytes, whatever they are; then the connection ends.
    pub fn raw(bytes: &str) -> Self {
        Self(Some(bytes.as_bytes().to_vec()))
    }

    /// None, for as long as the asker waits.
    pub fn never() -> Self {
        Self(None)
    }
}

/// A server on a port of its own, until it is dropped.
#[derive(Debug)]
pub struct Server {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Server {
    /// Starts a server that answers each request by itself.
    ///
    /// # Errors
    ///
    /// There is no free port.
    pub async fn start(
        answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let (seen, answer) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::new(answer));
        let log = seen.clone();
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (log, answer) = (log.clone(), answer.clone());
                tokio::spawn(async move {
                    let Some(request) = read(&mut stream).await else { return };
                    let answer = answer(&request).0;
                    log.lock().unwrap_or_else(PoisonError::into_inner).push(request);
                    match answer {
                        Some(bytes) => drop(stream.write_all(&bytes).await),
                        None => std::future::pending().await,
                    }
                });
            }
        });
        Ok(Self { addr, seen, task })
    }

    /// The address of a path on it.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// What it was asked so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it was asked what `wanted` says, for at most ten seconds.
    ///
    /// # Errors
    ///
    /// It was not; the error tells what it was asked.
    pub async fn saw(&self, wanted: impl Fn(&Seen) -> bool) -> Result<Seen> {
        for _ in 0..1000 {
            if let Some(seen) = self.seen().into_iter().find(&wanted) {
                return Ok(seen);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!("it was only asked {:?}", self.seen())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Asks for a page; gives status and body.
///
/// # Errors
///
/// Nobody listens there, or the answer is not HTTP.
pub async fn get(addr: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(addr).await?;
    let question = format!("GET {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n");
    stream.write_all(question.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without an end")?;
    let status = head.split(' ').nth(1).context("an answer without a status")?.parse()?;
    Ok((status, body.to_owned()))
}

/// Reads one request; `None` if the asker left or says nothing that is one.
async fn read(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let mut body = bytes.split_off(head + 4);
    let text = String::from_utf8(bytes).ok()?;
    let mut lines = text.trim_end().split("\r\n");
    let line = lines.next()?.rsplit_once(' ')?.0.to_owned();
    let headers: BTreeMap<_, _> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers.get("content-length").map_or(Some(0), |n| n.parse().ok())?;
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Seen { line, headers, body })
}
