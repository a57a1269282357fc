//! HTTP connection on which one streamed body after another is read.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Largest chunk that is read, in bytes.
const MAX_CHUNK_BYTES: usize = 16 << 20;

pub(super) struct Connection {
    pub(super) address: SocketAddr,
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { address, stream: BufReader::new(stream) })
    }

    /// Sends a request and reads the head of its response.
    pub(super) async fn post(&mut self, path: &str, body: &str) -> Result<()> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        self.stream.write_all((head + body).as_bytes()).await?;
        let status = self.line().await?;
        ensure!(status.split(' ').nth(1) == Some("200"), "it answered `{status}`");
        let mut chunked = false;
        loop {
            let header = self.line().await?.to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            chunked |= header == "transfer-encoding: chunked";
        }
        ensure!(chunked, "it answered without a stream");
        Ok(())
    }

    /// Returns the next chunk of the body; `None` at its end.
    pub(super) async fn part(&mut self) -> Result<Option<Vec<u8>>> {
        let size = self.line().await?;
        let size = size.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size, 16).context("a chunk without its size")?;
        ensure!(size <= MAX_CHUNK_BYTES, "a chunk of {size} bytes");
        let mut data = vec![0; size];
        self.stream.read_exact(&mut data).await?;
        ensure!(self.line().await?.is_empty(), "a chunk without an end");
        Ok((size > 0).then_some(data))
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).await?;
        ensure!(read > 0, "the connection ended");
        Ok(line.trim_end().to_owned())
    }
}
