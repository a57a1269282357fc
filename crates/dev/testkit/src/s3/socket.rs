//! Connection that can be closed by a reset, and that counts sent bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::call::Tally;

/// Close mode of a connection, shared with the responses that are sent on it.
#[derive(Clone, Debug, Default)]
pub(super) struct End(Arc<AtomicBool>);

impl End {
    /// Makes the connection close with a TCP reset, so that its peer reads an error instead of an
    /// end of stream.
    pub(super) fn by_reset(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    end: End,
    tally: Tally,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, end: End, tally: Tally) -> Self {
        // Without Nagle's algorithm, the last packet of a response is sent at once.
        let _ = stream.set_nodelay(true);
        tally.connection();
        Self { stream, end, tally }
    }

    fn written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let count = ready!(written)?;
        self.tally.wire(count);
        Poll::Ready(Ok(count))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.end.0.load(Ordering::Relaxed) {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A connection that is to be reset must not send a FIN first.
        if self.end.0.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
