//! Small HTTP/1.1 client, which sees what is on the connection.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Time after which a test gives up.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the text of a request, after which the server closes the connection.
pub(crate) fn request(
    method: &str,
    path: &str,
    key: &str,
    body: &str,
    headers: &[(&str, &str)],
) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    if !key.is_empty() {
        write!(text, "authorization: Bearer {key}\r\n").unwrap();
    }
    for (name, value) in headers {
        write!(text, "{name}: {value}\r\n").unwrap();
    }
    write!(text, "content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    text
}

/// Connection of a client.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    pub(crate) async fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        Self { stream, received: Vec::new() }
    }

    /// Connects with a small buffer, so that a client that does not read is noticed soon.
    pub(crate) async fn narrow(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let stream = socket.connect(address).await.unwrap();
        Self { stream, received: Vec::new() }
    }

    pub(crate) async fn send(&mut self, text: &str) {
        // A server that has refused the request may have closed the connection.
        let _ = self.stream.write_all(text.as_bytes()).await;
    }

    /// Reads until the text has arrived.
    pub(crate) async fn until(&mut self, text: &str) {
        let read = async {
            while !String::from_utf8_lossy(&self.received).contains(text) {
                let read = self.stream.read_buf(&mut self.received).await.unwrap();
                assert!(read > 0, "ended without {text}");
            }
        };
        timeout(TEST_TIMEOUT, read).await.unwrap();
    }

    /// Returns what has arrived so far. A last chunk that is incomplete is left out.
    pub(crate) fn received(&self) -> Answer {
        Answer::parse(&self.received)
    }

    /// Reads to the end of the connection, which must not be reset.
    pub(crate) async fn end(mut self) -> Answer {
        let read = async { while self.stream.read_buf(&mut self.received).await.unwrap() > 0 {} };
        timeout(TEST_TIMEOUT, read).await.expect("the server closes the connection");
        Answer::parse(&self.received)
    }

    /// Reads to the end of the connection.
    pub(crate) async fn rest(mut self) -> Answer {
        // The connection is reset if the server has not read all.
        let read =
            async { while self.stream.read_buf(&mut self.received).await.is_ok_and(|n| n > 0) {} };
        timeout(TEST_TIMEOUT, read).await.expect("the server closes the connection");
        Answer::parse(&self.received)
    }
}

/// Response.
#[derive(Debug)]
pub(crate) struct Answer {
    /// 0 if there is none.
    pub(crate) status: u16,
    /// True if a body in chunks has its last chunk.
    pub(crate) whole: bool,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    fn parse(received: &[u8]) -> Self {
        let end = received.windows(4).position(|four| four == b"\r\n\r\n");
        let (head, body) = received.split_at(end.map_or(received.len(), |end| end + 4));
        let head = String::from_utf8_lossy(head).to_lowercase();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let chunked = head.contains("transfer-encoding: chunked");
        let body = if chunked { joined(body) } else { body.to_vec() };
        let whole = received.ends_with(b"\r\n0\r\n\r\n");
        Self { status, whole, head, body: String::from_utf8(body).unwrap() }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Returns the code of an error.
    pub(crate) fn code(&self) -> String {
        let error = &self.json()["error"];
        error["code"].as_str().or(error["type"].as_str()).unwrap_or_default().to_owned()
    }

    /// Returns a header by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    }

    /// Returns the data of the events of a stream.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// Returns the text of a completion, whole or streamed.
    pub(crate) fn text(&self) -> String {
        let events: Vec<&str> =
            self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        if events.is_empty() {
            return self.json()["choices"][0]["text"].as_str().unwrap().to_owned();
        }
        assert_eq!(events.last(), Some(&"[DONE]"), "{}", self.body);
        let events = events.iter().filter(|event| **event != "[DONE]");
        let events = events.map(|event| serde_json::from_str::<Value>(event).unwrap());
        events.filter_map(|event| Some(event["choices"][0]["text"].as_str()?.to_owned())).collect()
    }
}

/// Joins the chunks of a body. A last one that is incomplete is left out.
fn joined(mut body: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&body[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        let Some(chunk) = body.get(end + 2..end + 2 + size) else { break };
        all.extend_from_slice(chunk);
        body = body.get(end + 2 + size + 2..).unwrap_or_default();
        if size == 0 {
            break;
        }
    }
    all
}
