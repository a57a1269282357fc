//! Connections: limits of number and time, TLS, and a drain that ends replies in order.

mod addresses;
mod idle;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use nsbridge_gateway_access::Meter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::addresses::Addresses;
use self::idle::TrackedRoutes;
use crate::config::Server;

/// Maximum size of a request's headers, in bytes.
const HEADER_BYTES: usize = 32 << 10;

/// Least number of connections that a client may have without a limit of the configuration.
const LEAST_SHARE: usize = 16;

/// First bytes of an HTTP/2 connection (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Listener for plain TCP connections.
pub(crate) struct PlainListener(pub(crate) TcpListener);

impl Listener for PlainListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.0.accept().await {
                Ok((tcp, address)) => {
                    // Each event of a stream leaves at once.
                    let _ = tcp.set_nodelay(true);
                    return (tcp, address);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections, trying again in 1 s");
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Serves connections until `drain` is canceled, and then for the grace period of the configuration.
pub(crate) async fn serve<L>(
    mut listener: L,
    routes: Router,
    config: &Server,
    drain: CancellationToken,
) where
    L: Listener<Addr = SocketAddr>,
{
    let places = Arc::new(Semaphore::new(config.max_connections));
    let share = (config.max_connections / 4).max(LEAST_SHARE);
    let addresses = Addresses::new(config.max_connections_of_address.unwrap_or(share));
    let (connections, kill) = (TaskTracker::new(), CancellationToken::new());
    let server = Arc::new(Connections::new(routes, config, drain.clone(), kill.clone()));
    loop {
        let place = tokio::select! {
            () = drain.cancelled() => break,
            place = places.clone().acquire_owned() => place,
        };
        let Ok(place) = place else { break };
        let (io, address) = tokio::select! {
            () = drain.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Some(counted) = addresses.count(address.ip()) else {
            tracing::debug!("a client has as many connections as it may have");
            continue;
        };
        let server = server.clone();
        connections.spawn(async move {
            server.serve(io).await;
            drop((place, counted));
        });
    }
    drop(listener);
    connections.close();
    let grace = Duration::from_secs(config.grace_s);
    if timeout(grace, connections.wait()).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "closing connections after the grace period"
        );
        kill.cancel();
        connections.wait().await;
    }
}

/// Settings and signals that all connections of a server share.
struct Connections {
    builder: Builder<TokioExecutor>,
    routes: Router,
    write_timeout: Duration,
    header_timeout: Duration,
    drain: CancellationToken,
    /// Canceled after the grace period.
    kill: CancellationToken,
}

impl Connections {
    fn new(
        routes: Router,
        config: &Server,
        drain: CancellationToken,
        kill: CancellationToken,
    ) -> Self {
        let write_timeout = Duration::from_secs(config.write_timeout_s);
        let header_timeout = Duration::from_secs(config.header_timeout_s);
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_buf_size(HEADER_BYTES);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(HEADER_BYTES as u32)
            .max_concurrent_streams(256)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20));
        Self { builder, routes, write_timeout, header_timeout, drain, kill }
    }

    /// Serves a connection to its end. From the drain on, only requests in progress are answered.
    async fn serve<T>(&self, io: T)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let meter = Meter::default();
        let (noted, requests) = TrackedRoutes::new(self.routes.clone(), meter.clone());
        let service = TowerToHyperService::new(noted);
        let io = TimeoutIo::new(io, self.write_timeout, self.header_timeout, meter);
        let io = TokioIo::new(Box::pin(io));
        let connection = self.builder.serve_connection_with_upgrades(io, service);
        tokio::pin!(connection);
        let over = async {
            tokio::select! {
                () = self.drain.cancelled() => true,
                () = requests.clone().quiet(self.header_timeout) => requests.were_made(),
            }
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            // Requests in progress run to their end. A connection that never had one gets no grace,
            // which lasts until HTTP/2's pings are answered.
            with_grace = over => if !with_grace { Ok(()) } else {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = self.kill.cancelled() => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended with an error");
        }
    }
}

/// Connection that fails if its client reads nothing for too long, or does not begin to write.
struct TimeoutIo<T> {
    inner: T,
    limit: Duration,
    /// Set while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Set while the bytes so far are the beginning of [`PREFACE`]. hyper waits for the next byte
    /// without a time limit, because it does not know the version of HTTP.
    opening: Option<Pin<Box<Sleep>>>,
    /// Number of bytes of the preface so far.
    opened: usize,
    meter: Meter,
}

impl<T> TimeoutIo<T> {
    fn new(inner: T, limit: Duration, opening: Duration, meter: Meter) -> Self {
        let opening = Some(Box::pin(sleep(opening)));
        Self { inner, limit, waiting: None, opening, opened: 0, meter }
    }

    /// Ends the time limit of the opening when hyper knows the version of HTTP.
    fn opened(&mut self, bytes: &[u8]) {
        self.opened += bytes.len();
        let begin = self.opened - bytes.len();
        let more = self.opened < PREFACE.len();
        if !(more && PREFACE.get(begin..self.opened) == Some(bytes)) {
            self.opening = None;
        }
    }

    fn watch<R>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TimeoutIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        if !self.meter.read(buffer.filled().len() - before) {
            let full = "the tenant has no memory left for the messages of its proxies";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::OutOfMemory, full)));
        }
        match (&mut self.opening, &read) {
            (Some(opening), Poll::Pending) => {
                ready!(opening.as_mut().poll(context));
                let silent = "the client does not begin a request";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, silent)))
            }
            (Some(_), Poll::Ready(Ok(()))) => {
                self.opened(buffer.filled().get(before..).unwrap_or_default());
                read
            }
            _ => read,
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TimeoutIo<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
