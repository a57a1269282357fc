//! Frames on a Unix socket: a big-endian `u32` length and JSON.

use std::io;
use std::os::unix::net::UnixStream as StdStream;

use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::messages::FromPython;

/// Size in bytes by which the read buffer grows.
const STEP: usize = 16 << 10;

/// Maximum size of a frame from Python: a piece as large as a whole reply, and its wrapping.
const MAX_FRAME_BYTES: usize = (8 << 20) + 64;

/// Connection to a slot or to the control thread of a Python process.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// Start of the first frame in the buffer that was not returned yet.
    start: usize,
    /// Size of the last frame that was returned, in bytes.
    last: usize,
}

impl Wire {
    /// Registers a non-blocking socket with the runtime of this thread.
    pub(crate) fn new(stream: StdStream) -> io::Result<Self> {
        Ok(Self::of(UnixStream::from_std(stream)?))
    }

    pub(crate) fn of(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new(), start: 0, last: 0 }
    }

    /// Returns the socket, if no received byte is left over.
    pub(crate) fn into_std(self) -> io::Result<StdStream> {
        let (stream, rest) = self.into_parts()?;
        if rest.is_empty() { Ok(stream) } else { Err(invalid("bytes after the end of a call")) }
    }

    /// Returns the socket and the received bytes that were not returned yet.
    pub(crate) fn into_parts(mut self) -> io::Result<(StdStream, Vec<u8>)> {
        Ok((self.stream.into_std()?, self.buffer.split_off(self.start)))
    }

    /// Registers a socket from which these bytes were received already.
    pub(crate) fn with(stream: StdStream, received: Vec<u8>) -> io::Result<Self> {
        Ok(Self { buffer: received, ..Self::new(stream)? })
    }

    /// Sends a message.
    pub(crate) async fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        self.stream.write_all(&frame(message)?).await
    }

    /// Sends bytes as one frame, without a copy of them.
    pub(crate) async fn send_bytes(&mut self, content: &[u8]) -> io::Result<()> {
        self.stream.write_all(&length(content)?).await?;
        self.stream.write_all(content).await
    }

    /// Returns the next message, or `None` at the end of the stream. Dropping the future loses
    /// nothing.
    pub(crate) async fn next(&mut self) -> io::Result<Option<FromPython>> {
        loop {
            if let Some(message) = self.buffered()? {
                return Ok(Some(message));
            }
            self.buffer.reserve(STEP);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Returns the size of the last message in bytes.
    pub(crate) fn last(&self) -> usize {
        self.last
    }

    fn buffered(&mut self) -> io::Result<Option<FromPython>> {
        let rest = &self.buffer[self.start..];
        let Some((size, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let size = u32::from_be_bytes(*size) as usize;
        if size > MAX_FRAME_BYTES {
            return Err(invalid("a frame that is too large"));
        }
        let Some(content) = rest.get(..size) else {
            self.buffer.drain(..self.start);
            self.start = 0;
            return Ok(None);
        };
        // The error is not kept: it may quote a piece.
        let message =
            serde_json::from_slice(content).map_err(|_| invalid("a frame that is no message"))?;
        (self.last, self.start) = (size, self.start + 4 + size);
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        Ok(Some(message))
    }
}

/// Returns a message as a frame.
pub(crate) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = length(&frame[4..])?;
    frame[..4].copy_from_slice(&length);
    Ok(frame)
}

fn length(content: &[u8]) -> io::Result<[u8; 4]> {
    let size = u32::try_from(content.len()).map_err(|_| invalid("a message that is too large"))?;
    Ok(size.to_be_bytes())
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests;
