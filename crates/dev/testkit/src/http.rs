//! HTTP test server on a real socket, with scripted responses and a log of requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Request as received.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Method and path, such as `GET /a`.
    pub line: String,
    /// Headers by lower-case name.
    pub headers: BTreeMap<String, String>,
    /// Body, unmodified.
    pub body: Vec<u8>,
}

impl Seen {
    /// Returns the body as text, or an empty string if it is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_default()
    }

    /// Returns a header by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// Response of the server, or none.
#[derive(Clone, Debug)]
pub struct Answer(Option<Vec<u8>>);

impl Answer {
    /// Creates a response with this status and body.
    pub fn new(status: u16, body: &str) -> Self {
        let length = body.len();
        // Each connection ends with its response, so the header tells clients with keep-alive not
        // to reuse it.
        let head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {length}");
        Self(Some(format!("{head}\r\n\r\n{body}").into_bytes()))
    }

    /// Sends these bytes unmodified and closes the connection.
    pub fn raw(bytes: &str) -> Self {
        Self(Some(bytes.as_bytes().to_vec()))
    }

    /// Sends nothing and keeps the connection open for as long as the client waits.
    pub fn never() -> Self {
        Self(None)
    }
}

/// Running server on a port of its own, until it is dropped.
#[derive(Debug)]
pub struct Server {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Server {
    /// Starts a server that answers each request with `answer`.
    ///
    /// # Errors
    ///
    /// Returns an error if no port is free.
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

    /// Returns the URL of a path on this server.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// Returns the requests received so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits at most ten seconds for a request that matches `wanted`, and returns it.
    ///
    /// # Errors
    ///
    /// Returns an error if no request matched; the error lists the received requests.
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

/// Sends a GET request; returns status and body.
///
/// # Errors
///
/// Returns an error if the server cannot be reached, or if the response is not HTTP.
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

/// Reads one request. Returns `None` if the client closed the connection or the bytes are no
/// request.
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
