//! Listener for TLS connections, for `axum::serve`.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const MOST_HANDSHAKES: usize = 1024;
/// Pause after an error of the listening socket, such as too many open files.
const PAUSE: Duration = Duration::from_secs(1);

/// Listener that yields connections whose TLS handshake is done.
///
/// Each handshake is a task of its own, so a slow client holds up no other. While the maximum
/// number of handshakes is under way, new connections wait in the kernel's backlog. Handshakes that
/// are under way are aborted when the listener is dropped.
pub(crate) struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
    timeout: Duration,
    most: usize,
    handshakes: JoinSet<Option<Connection>>,
    resume: Option<Instant>,
}

type Connection = (TlsStream<TcpStream>, SocketAddr);

impl TlsListener {
    /// Creates a listener with a handshake timeout of 10 seconds and at most 1024 handshakes at the
    /// same time.
    pub(crate) fn new(tcp: TcpListener, config: Arc<ServerConfig>) -> Self {
        Self::with_limits(tcp, config, HANDSHAKE_TIMEOUT, MOST_HANDSHAKES)
    }

    pub(super) fn with_limits(
        tcp: TcpListener,
        config: Arc<ServerConfig>,
        timeout: Duration,
        most: usize,
    ) -> Self {
        let (acceptor, handshakes) = (TlsAcceptor::from(config), JoinSet::new());
        Self { tcp, acceptor, timeout, most: most.max(1), handshakes, resume: None }
    }

    fn begin(&mut self, tcp: TcpStream, address: SocketAddr) {
        let handshake = handshake(self.acceptor.clone(), tcp, self.timeout);
        self.handshakes.spawn(async move { handshake.await.map(|stream| (stream, address)) });
    }

    fn pause_after(&mut self, error: &io::Error) {
        // An error of one connection, which says nothing about the next one.
        let of_connection = matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
        );
        if !of_connection {
            tracing::warn!(%error, "cannot accept connections, retrying in 1 s");
            self.resume = Some(Instant::now() + PAUSE);
        }
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> Connection {
        loop {
            let room = self.handshakes.len() < self.most;
            tokio::select! {
                // Disabled while there are no handshakes; then there is room.
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
                accepted = next(&self.tcp, self.resume), if room => {
                    self.resume = None;
                    match accepted {
                        Ok((tcp, address)) => self.begin(tcp, address),
                        Err(error) => self.pause_after(&error),
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

async fn next(tcp: &TcpListener, resume: Option<Instant>) -> io::Result<(TcpStream, SocketAddr)> {
    if let Some(resume) = resume {
        sleep_until(resume).await;
    }
    tcp.accept().await
}

async fn handshake(
    acceptor: TlsAcceptor,
    tcp: TcpStream,
    limit: Duration,
) -> Option<TlsStream<TcpStream>> {
    // Pieces of a stream are small and must not wait for one another.
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    match timeout(limit, acceptor.accept(tcp)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!("a TLS handshake took too long");
            None
        }
    }
}

impl fmt::Debug for TlsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsListener")
            .field("tcp", &self.tcp)
            .field("handshakes", &self.handshakes.len())
            .finish_non_exhaustive()
    }
}
