//! Client of HTTP/1.1 streams: a connection that is used again for each request.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Time limit for a part of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

/// Request of a streamed reply.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    method: &'static str,
    page: String,
    body: String,
    /// Field of an event that has the text.
    text: &'static str,
}

impl Call {
    /// Completion of the prompt "Once".
    pub(crate) fn completion(model: &str, tokens: usize) -> Self {
        let body = json!({"model": model, "prompt": "Once", "max_tokens": tokens, "stream": true});
        Self::post("/v1/completions", &body, "text")
    }

    /// Chat of one user's message.
    pub(crate) fn chat(model: &str, message: &str, tokens: usize) -> Self {
        let body = json!({
            "model": model, "messages": [{"role": "user", "content": message}],
            "max_tokens": tokens, "stream": true,
        });
        Self::post("/v1/chat/completions", &body, "content")
    }

    /// Response with `tokens` tokens: the end token of the model does not end it.
    pub(crate) fn response(model: &str, message: &str, tokens: usize) -> Self {
        let body = json!({
            "model": model, "input": message, "max_output_tokens": tokens, "stream": true,
            "ignore_eos": true,
        });
        Self::post("/v1/responses", &body, "delta")
    }

    /// Rest of a response's stream, after the event with the number `after`.
    pub(crate) fn rest(id: &str, after: u64) -> Self {
        let page = format!("/v1/responses/{id}?stream=true&starting_after={after}");
        Self { method: "GET", page, body: String::new(), text: "delta" }
    }

    /// Page without a body.
    pub(crate) fn page(page: &str) -> Self {
        Self { method: "GET", page: page.to_owned(), body: String::new(), text: "" }
    }

    /// Adds a field to the body, so that the end token of the model does not end a reply.
    pub(crate) fn whole(mut self) -> Self {
        self.body.truncate(self.body.len().saturating_sub(1));
        self.body.push_str(",\"ignore_eos\":true}");
        self
    }

    fn post(page: &str, body: &serde_json::Value, text: &'static str) -> Self {
        Self { method: "POST", page: page.to_owned(), body: body.to_string(), text }
    }
}

/// Connection to a server.
pub(crate) struct Stream {
    tcp: TcpStream,
    address: SocketAddr,
    received: Vec<u8>,
}

impl Stream {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self> {
        Self::connect_from(Ipv4Addr::LOCALHOST, address).await
    }

    /// Connects from an address of this machine, such as 127.0.0.2.
    pub(crate) async fn connect_from(source: Ipv4Addr, address: SocketAddr) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        // Otherwise the kernel takes a port that no other connection from any address has.
        socket.set_reuseaddr(true)?;
        socket.bind((source, 0).into())?;
        let tcp = socket.connect(address).await?;
        tcp.set_nodelay(true)?;
        Ok(Self { tcp, address, received: Vec::new() })
    }

    pub(crate) async fn send(&mut self, call: &Call) -> Result<()> {
        self.received.clear();
        let Call { method, page, body, .. } = call;
        let head = format!(
            "{method} {page} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             authorization: Bearer none\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        self.tcp.write_all((head + body).as_bytes()).await?;
        Ok(())
    }

    /// Returns the time to the first text of a reply, and reads the reply whole. A reply without a
    /// text ends in its stead.
    pub(crate) async fn first(&mut self, call: &Call, began: Instant) -> Result<Duration> {
        self.send(call).await?;
        let done = |received: &[u8]| find(received, b"data: [DONE]").is_some();
        self.until(|received| has_text(received, call.text) || done(received)).await?;
        let took = began.elapsed();
        self.end().await?;
        Ok(took)
    }

    /// Reads a whole reply.
    pub(crate) async fn whole(&mut self, call: &Call) -> Result<()> {
        self.send(call).await?;
        self.until(|received| find(received, b"data: [DONE]").is_some()).await
    }

    /// Sends a chat and reads its first event, which comes before the first token.
    pub(crate) async fn wait(&mut self, call: &Call) -> Result<()> {
        self.send(call).await?;
        self.until(|received| find(received, b"\"role\":\"assistant\"").is_some()).await
    }

    /// Reads the text of a reply until its end and calls `piece` with the time of each part that
    /// has text.
    pub(crate) async fn pieces(
        &mut self,
        call: &Call,
        mut piece: impl FnMut(Instant),
    ) -> Result<()> {
        self.send(call).await?;
        loop {
            self.read().await?;
            // The last line may be incomplete.
            let lines =
                self.received.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let whole = self.received.get(..lines).unwrap_or_default();
            if has_text(whole, call.text) {
                piece(Instant::now());
            }
            if find(whole, b"data: [DONE]").is_some() {
                return Ok(());
            }
            self.received.drain(..lines);
        }
    }

    /// Reads the last chunk of the body.
    async fn end(&mut self) -> Result<()> {
        self.until(|received| received.ends_with(b"0\r\n\r\n")).await
    }

    /// Reads until `done` holds for all that was received.
    pub(crate) async fn until(&mut self, done: impl Fn(&[u8]) -> bool) -> Result<()> {
        while !done(&self.received) {
            self.read().await?;
            let head = self.received.get(..12).unwrap_or(b"HTTP/1.1 200");
            let all = || String::from_utf8_lossy(&self.received);
            ensure!(head == b"HTTP/1.1 200" || done(&self.received), "{}", all());
        }
        Ok(())
    }

    /// Everything that was received of the current response.
    pub(crate) fn received(&self) -> &[u8] {
        &self.received
    }

    /// Reads some more bytes of the response.
    pub(crate) async fn read(&mut self) -> Result<()> {
        // A buffer that is drained would be read into a few bytes at a time.
        self.received.reserve(16 << 10);
        let read = timeout(RESPONSE_TIMEOUT, self.tcp.read_buf(&mut self.received)).await;
        if read.context("nothing came for two minutes")?? == 0 {
            bail!("the server closed the connection after {}", tail(&self.received));
        }
        Ok(())
    }
}

/// Returns whether a field `key` has a text that is not empty.
fn has_text(received: &[u8], key: &str) -> bool {
    let mark = format!("\"{key}\":");
    let mut rest = received;
    while let Some(at) = find(rest, mark.as_bytes()) {
        rest = &rest[at + mark.len()..];
        let value = rest.strip_prefix(b" ").unwrap_or(rest);
        if value.starts_with(b"\"") && value.get(1).is_some_and(|byte| *byte != b'"') {
            return true;
        }
    }
    false
}

/// Returns the place of `mark`.
pub(crate) fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|part| part == mark)
}

fn tail(received: &[u8]) -> String {
    let from = received.len().saturating_sub(200);
    String::from_utf8_lossy(&received[from..]).into_owned()
}
