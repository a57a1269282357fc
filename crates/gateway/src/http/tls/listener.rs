//! Listener for TLS connections, for `axum::serve`.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::serve::Listener;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const MOST_HANDSHAKES: usize = 1024;
/// Pause after an error of the listening socket, such as too many open files.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// Listener that yields connections whose TLS handshake is done.
///
/// Each handshake is a task of its own, so a slow client holds up no other. While the maximum
/// number of handshakes is under way, the oldest one whose client has sent nothing is aborted; if there
/// is none, new connections wait in the kernel's backlog. Handshakes that are under way are aborted when
/// the listener is dropped.
pub(crate) struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
    timeout: Duration,
    most: usize,
    handshakes: JoinSet<Option<Connection>>,
    /// Handshakes under way whose clients may be silent, the oldest first.
    waiting: VecDeque<Waiting>,
    resume: Option<Instant>,
    /// Connection that was accepted and waits for room.
    next: Option<(TcpStream, SocketAddr)>,
}

/// Handshake under way.
struct Waiting {
    task: AbortHandle,
    /// True if the client has sent a byte.
    has_begun: Arc<AtomicBool>,
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
        let (waiting, most) = (VecDeque::new(), most.max(1));
        Self { tcp, acceptor, timeout, most, handshakes, waiting, resume: None, next: None }
    }

    fn begin(&mut self, tcp: TcpStream, address: SocketAddr) {
        let has_begun = Arc::new(AtomicBool::new(false));
        let handshake = handshake(self.acceptor.clone(), tcp, self.timeout, has_begun.clone());
        let handshake = async move { handshake.await.map(|stream| (stream, address)) };
        let task = self.handshakes.spawn(handshake);
        while self.waiting.front().is_some_and(|oldest| oldest.task.is_finished()) {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Waiting { task, has_begun });
    }

    /// Returns true if there is room for another handshake: the oldest one whose client has sent nothing
    /// is aborted if need be.
    fn makes_room(&mut self) -> bool {
        if self.handshakes.len() < self.most {
            return true;
        }
        let silent = |it: &Waiting| !it.has_begun.load(Ordering::Relaxed) && !it.task.is_finished();
        let oldest = self.waiting.iter().position(silent);
        let oldest = oldest.and_then(|at| self.waiting.remove(at));
        oldest.as_ref().inspect(|oldest| oldest.task.abort()).is_some()
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
            self.resume = Some(Instant::now() + ERROR_PAUSE);
        }
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> Connection {
        loop {
            if self.next.is_some()
                && self.makes_room()
                && let Some((tcp, address)) = self.next.take()
            {
                self.begin(tcp, address);
            }
            let room = self.next.is_none();
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
                        Ok(accepted) => self.next = Some(accepted),
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
    has_begun: Arc<AtomicBool>,
) -> Option<TlsStream<TcpStream>> {
    // Pieces of a stream are small and must not wait for one another.
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let accepted = async {
        tcp.peek(&mut [0]).await?;
        has_begun.store(true, Ordering::Relaxed);
        acceptor.accept(tcp).await
    };
    match timeout(limit, accepted).await {
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
