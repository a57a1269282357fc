//! Client of HTTP/1.1 streams: a connection that is used again for each request.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::place::Place;

/// Connection to the gateway.
pub(crate) struct Stream {
    tcp: TcpStream,
    received: Vec<u8>,
}

impl Stream {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        Ok(Self { tcp, received: Vec::new() })
    }

    async fn send(&mut self, place: &Place, page: &str, body: &str) -> Result<()> {
        let head = format!(
            "POST {page} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            place.address,
            body.len()
        );
        self.tcp.write_all((head + body).as_bytes()).await?;
        Ok(())
    }

    /// Reads until the text of the response has `mark`.
    async fn until(&mut self, mark: &str) -> Result<()> {
        let mut from = 0;
        loop {
            let new = &self.received[from..];
            if new.windows(mark.len()).any(|bytes| bytes == mark.as_bytes()) {
                return Ok(());
            }
            // The mark may begin in what has been searched.
            from = self.received.len().saturating_sub(mark.len());
            let read = self.tcp.read_buf(&mut self.received).await?;
            ensure!(read > 0, "{}", String::from_utf8_lossy(&self.received));
        }
    }

    /// Returns the time to the first token of a completion, and reads it whole.
    pub(crate) async fn first(
        &mut self,
        place: &Place,
        tokens: usize,
        began: Instant,
    ) -> Result<Duration> {
        self.complete(place, tokens).await?;
        self.until("\"text\":\"word").await?;
        let took = began.elapsed();
        // The last chunk of the body.
        self.until("0\r\n\r\n").await?;
        self.received.clear();
        Ok(took)
    }

    /// Reads a whole completion.
    pub(crate) async fn whole(&mut self, place: &Place, tokens: usize) -> Result<()> {
        self.complete(place, tokens).await?;
        self.until("data: [DONE]").await?;
        Ok(())
    }

    async fn complete(&mut self, place: &Place, tokens: usize) -> Result<()> {
        let model = &place.model;
        let body = format!(
            "{{\"model\":\"{model}\",\"prompt\":\"Once\",\"max_tokens\":{tokens},\"stream\":true}}"
        );
        self.send(place, "/v1/completions", &body).await
    }

    /// Begins a chat and reads its first chunk, which comes before the first token.
    pub(crate) async fn wait(&mut self, place: &Place) -> Result<()> {
        let model = &place.model;
        let body = format!(
            "{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Once\"}}],\
             \"max_tokens\":1,\"stream\":true}}"
        );
        self.send(place, "/v1/chat/completions", &body).await?;
        self.until("\"role\":\"assistant\"").await
    }
}
