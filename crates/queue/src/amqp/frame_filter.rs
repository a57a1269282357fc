//! Filter for the broker's bytes: removes input that would crash the process inside lapin.
//!
//! **Tables that are nested too deeply.** lapin parses nested tables and arrays by recursion, on a
//! thread with a stack of the usual size. A message whose headers are nested some thousand levels
//! deep takes only 10 kB, and its sender needs no key. It would crash the process, return to the
//! queue and crash the next one. The filter therefore retypes a table or array deeper than level 16
//! as a byte array before lapin sees it. All three types are encoded as a type letter, a length and
//! that many bytes, so only one letter changes. No legitimate headers are nested that deeply.
//!
//! **Bodies that are too large.** lapin collects a body in memory, whatever its length, and a few
//! of 128 MiB exhaust a machine's memory. For a body beyond the limit of its queue, the filter
//! therefore sets the announced size to zero and drops the body's frames as they arrive
//! ([`Bodies`]).
//!
//! It also reads the broker's version, which is part of the first frame.

mod bodies;
mod greeting;
mod reader;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_rs::traits::{Executor, Reactor, RuntimeKit};
use async_rs::util::Task;
use async_rs::{Runtime, Tokio};
use futures_util::{AsyncRead, AsyncWrite, Stream, TryFutureExt};
use lapin::tcp::{AMQPUriTcpExt, AsyncTcpStream, OwnedTLSConfig};
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};

use greeting::{Greeting, Version};

pub(crate) use bodies::Bodies;
#[cfg(feature = "testing")]
pub(crate) use reader::DEEPEST;
pub(crate) use reader::Reader;

/// Maximum number of bytes per read from the socket.
const READ_BYTES: usize = 64 << 10;

/// Open connection, and what the filter shares with it.
pub(super) struct Filter {
    pub(super) connection: Connection,
    pub(super) bodies: Arc<Bodies>,
    /// Version of the broker, if it told one.
    pub(super) version: Option<Version>,
}

/// Opens a connection that the current runtime serves.
pub(super) async fn connect(
    uri: AMQPUri,
    tls: OwnedTLSConfig,
    properties: ConnectionProperties,
) -> lapin::Result<Filter> {
    let shared = Shared::default();
    let tokio = Tokio::current();
    let runtime = Runtime::new(Kit { tokio: tokio.clone(), shared: shared.clone() });
    let tokio = Runtime::new(tokio);
    let of_stream = shared.clone();
    let connect = async move |uri: AMQPUri, _| {
        let stream = uri.connect_with_config_async(tls.as_ref(), &tokio).await?;
        Ok(AsyncTcpStream::Plain(Filtered::new(stream, of_stream.clone())))
    };
    let connection = Connection::connector(uri, runtime, connect, properties).await?;
    let version = shared.version.get().copied();
    Ok(Filter { connection, bodies: shared.bodies, version })
}

/// State that a filter shares with its connection.
#[derive(Clone, Debug, Default)]
struct Shared {
    bodies: Arc<Bodies>,
    version: Arc<OnceLock<Version>>,
}

type Socket = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;

/// tokio runtime kit whose streams are filtered.
#[derive(Clone, Debug)]
struct Kit {
    tokio: Tokio,
    shared: Shared,
}

impl RuntimeKit for Kit {}

impl Executor for Kit {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        self.tokio.block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        future: F,
    ) -> Task<Self::Task<T>> {
        self.tokio.spawn(future)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        work: F,
    ) -> Task<Self::Task<T>> {
        self.tokio.spawn_blocking(work)
    }
}

impl Reactor for Kit {
    type TcpStream = Filtered;
    type Sleep = <Tokio as Reactor>::Sleep;

    // lapin never calls this.
    fn register<H: Read + Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Filtered, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.tokio.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.tokio.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        addr: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let shared = self.shared.clone();
        let filtered = |stream| Filtered::new(AsyncTcpStream::Plain(stream), shared);
        self.tokio.tcp_connect_addr(addr).map_ok(filtered)
    }
}

/// Filtered connection to a broker.
struct Filtered {
    socket: Socket,
    greeting: Greeting,
    reader: Reader,
    /// Buffer for bytes from the socket that are not filtered yet.
    came: Box<[u8]>,
    /// Filtered bytes. lapin has already read those before `taken`.
    passed: Vec<u8>,
    taken: usize,
}

impl Filtered {
    fn new(socket: Socket, shared: Shared) -> Self {
        let came = vec![0; READ_BYTES].into_boxed_slice();
        let (greeting, reader) = (Greeting::new(shared.version), Reader::new(shared.bodies));
        Self { socket, greeting, reader, came, passed: Vec::new(), taken: 0 }
    }
}

impl AsyncRead for Filtered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        while this.taken == this.passed.len() {
            let count = ready!(Pin::new(&mut this.socket).poll_read(cx, &mut this.came))?;
            if count == 0 {
                return Poll::Ready(Ok(0));
            }
            this.passed.clear();
            this.taken = 0;
            this.greeting.read(&this.came[..count]);
            this.reader.read(&this.came[..count], &mut this.passed)?;
        }
        let rest = &this.passed[this.taken..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        this.taken += count;
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for Filtered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx)
    }
}
