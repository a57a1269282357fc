//! Responses from bytes instead of a socket, for fuzzing.

use std::io;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};

use http::Uri;
use tokio::io::{AsyncRead, ReadBuf};

use super::{Answer, Connection, exchange};

/// Bytes that arrive in parts of at most `most`.
struct Parts {
    bytes: Vec<u8>,
    at: usize,
    most: usize,
}

impl AsyncRead for Parts {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = &self.bytes[self.at..];
        let count = left.len().min(self.most).min(into.remaining());
        into.put_slice(&left[..count]);
        self.at += count;
        Poll::Ready(Ok(()))
    }
}

/// Reads the bytes as the response of a server, in parts of at most `part` bytes, and returns its
/// status and body. The body of an error has at most `most` bytes.
///
/// # Errors
///
/// Returns an error if the bytes are no response, end too early, or have too long a body.
pub async fn read_response(bytes: &[u8], part: usize, most: u64) -> io::Result<(u16, Vec<u8>)> {
    let parts = Parts { bytes: bytes.to_vec(), at: 0, most: part };
    let socket = Box::new(tokio::io::join(parts, tokio::io::sink()));
    let mut connection = Connection { socket, to: Uri::default(), pool: Weak::new() };
    let mut came = Vec::new();
    let head = exchange(&mut connection.socket, b"GET / HTTP/1.1\r\n\r\n", &mut came).await?;
    let Answer { head, mut body } = Answer::new(head, came, connection)?;
    let status = head.status().as_u16();
    if status >= 300 {
        return Ok((status, body.whole(most).await?));
    }
    let (mut read, mut buffer) = (Vec::new(), [0; 100]);
    loop {
        match body.read(&mut buffer).await? {
            0 => return Ok((status, read)),
            count => read.extend_from_slice(&buffer[..count]),
        }
    }
}
