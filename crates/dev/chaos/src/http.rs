//! HTTP client that reads server-sent events, and tells a cut from the end of a stream.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Largest chunk that is read, in bytes.
const MAX_CHUNK_BYTES: usize = 16 << 20;

/// Response whose body is read.
#[derive(Debug)]
pub struct Response {
    /// Status code.
    pub status: u16,
    chunked: bool,
    /// Number of bytes of a body that is not chunked.
    length: usize,
    stream: BufReader<TcpStream>,
    /// Bytes of the body that make no whole line yet.
    rest: Vec<u8>,
}

/// Sends a request with these further header lines.
pub async fn send(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Result<Response> {
    let mut stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n\
         content-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    Response::begin(BufReader::new(stream)).await
}

impl Response {
    async fn begin(mut stream: BufReader<TcpStream>) -> Result<Self> {
        let first = line(&mut stream).await?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("`{first}` has no status"))?;
        let (mut chunked, mut length) = (false, 0);
        loop {
            let header = line(&mut stream).await?.to_ascii_lowercase();
            match header.split_once(':') {
                None => break,
                Some(("transfer-encoding", value)) => chunked = value.trim() == "chunked",
                Some(("content-length", value)) => length = value.trim().parse()?,
                Some(_) => {}
            }
        }
        Ok(Self { status, chunked, length, stream, rest: Vec::new() })
    }

    /// Reads a body that is not chunked.
    pub async fn whole(mut self) -> Result<String> {
        ensure!(!self.chunked && self.length <= MAX_CHUNK_BYTES, "the body has an unexpected form");
        let mut body = vec![0; self.length];
        self.stream.read_exact(&mut body).await?;
        Ok(String::from_utf8(body)?)
    }

    /// Returns the data of the next event; `None` at the end of the body.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection ends before the body.
    pub async fn event(&mut self) -> Result<Option<Value>> {
        loop {
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                match line.strip_prefix(b"data: ").map(<[u8]>::trim_ascii) {
                    Some(b"[DONE]") | None => {}
                    Some(data) => return Ok(Some(serde_json::from_slice(data)?)),
                }
            }
            if !self.chunk().await? {
                return Ok(None);
            }
        }
    }

    /// Reads a chunk; returns `false` at the last one.
    async fn chunk(&mut self) -> Result<bool> {
        ensure!(self.chunked, "the stream is not chunked");
        let size = line(&mut self.stream).await?;
        let size = usize::from_str_radix(&size, 16).context("a chunk has no size")?;
        ensure!(size <= MAX_CHUNK_BYTES, "a chunk is too large");
        let begin = self.rest.len();
        self.rest.resize(begin + size, 0);
        if let Err(error) = self.stream.read_exact(&mut self.rest[begin..]).await {
            self.rest.truncate(begin);
            return Err(error.into());
        }
        line(&mut self.stream).await?;
        Ok(size > 0)
    }
}

async fn line(stream: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    match line.strip_suffix("\r\n") {
        Some(line) => Ok(line.to_owned()),
        None => bail!("the connection ended"),
    }
}
