//! A TCP proxy that breaks connections as networks do.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};

/// More connections than this at a time are turned away.
const MOST_CONNECTIONS: usize = 256;

/// How much is copied at once.
const PIECE: usize = 64 << 10;

/// A proxy in front of a server. Dropping it closes all of its connections.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    refuses: bool,
    frozen: bool,
    ended: bool,
    /// Both sides of each connection.
    sockets: Vec<(u64, TcpStream)>,
    next: u64,
}

impl Proxy {
    /// A proxy to `server`, on a port of its own.
    ///
    /// # Errors
    ///
    /// No port could be opened.
    pub fn to(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("opening a proxy")?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared { server, state: Mutex::default(), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept_from(&listener));
        Ok(Self { addr, shared })
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Closes all connections. New ones are taken.
    pub fn cut(&self) {
        for (_, socket) in self.shared.lock().sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Closes every new connection at once, until [`accept`](Self::accept).
    pub fn refuse(&self) {
        self.shared.lock().refuses = true;
    }

    /// Takes new connections again.
    pub fn accept(&self) {
        self.shared.lock().refuses = false;
    }

    /// Lets nothing through in either direction, while both sides believe in their connection:
    /// what a pulled cable looks like. Until [`thaw`](Self::thaw), which lets it all through late.
    pub fn freeze(&self) {
        self.shared.lock().frozen = true;
    }

    /// Ends [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        self.shared.lock().frozen = false;
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        self.cut();
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.addr);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_from(self: Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming().flatten() {
            let (ended, refuses) = {
                let state = self.lock();
                (state.ended, state.refuses || state.sockets.len() >= 2 * MOST_CONNECTIONS)
            };
            if ended {
                return;
            }
            if !refuses {
                // A client of a server that is down sees its connection close.
                let _ = self.join(client);
            }
        }
    }

    /// Connects a client with the server.
    fn join(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(self.server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let number = {
            let mut state = self.lock();
            state.next += 1;
            let number = state.next;
            state.sockets.push((number, client.try_clone()?));
            state.sockets.push((number, server.try_clone()?));
            number
        };
        self.copy_in_thread(number, client.try_clone()?, server.try_clone()?);
        self.copy_in_thread(number, server, client);
        Ok(())
    }

    fn copy_in_thread(self: &Arc<Self>, number: u64, from: TcpStream, to: TcpStream) {
        let shared = Arc::clone(self);
        thread::spawn(move || {
            let _ = shared.copy(&from, &to);
            for socket in [from, to] {
                let _ = socket.shutdown(Shutdown::Both);
            }
            shared.lock().sockets.retain(|(other, _)| *other != number);
        });
    }

    fn copy(&self, mut from: &TcpStream, mut to: &TcpStream) -> std::io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let count = from.read(&mut piece)?;
            if count == 0 {
                return Ok(());
            }
            self.wait_while_frozen();
            to.write_all(&piece[..count])?;
        }
    }

    fn wait_while_frozen(&self) {
        let held = |state: &mut State| state.frozen && !state.ended;
        drop(self.changed.wait_while(self.lock(), held).unwrap_or_else(PoisonError::into_inner));
    }
}
