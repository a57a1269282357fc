//! TCP proxy that injects connection faults.
//!
//! AMQP clients name their connections, and each fault can be limited to connections by name.

mod name;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};

use name::Sniffer;

/// Maximum number of open connections; further connections are refused.
const MOST_CONNECTIONS: usize = 256;

/// Size of the copy buffer, in bytes.
const PIECE: usize = 64 << 10;

/// Proxy in front of a server. Dropping it closes all of its connections.
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
    /// Substrings of connection names; matching connections are frozen.
    frozen: Vec<String>,
    ended: bool,
    connections: Vec<Joined>,
    next: u64,
}

/// Client connection joined with a connection to the server.
#[derive(Debug)]
struct Joined {
    number: u64,
    /// Name that the client gave the connection. Empty until the client has sent it, and for
    /// protocols other than AMQP.
    name: String,
    sockets: [TcpStream; 2],
    tear: Tear,
}

/// Progress of closing a connection in the middle of a piece.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tear {
    No,
    /// Half of the next piece is the last that is forwarded.
    AtNextPiece,
    /// Closing: nothing else is forwarded, in either direction.
    Done,
}

impl State {
    fn holds(&self, number: u64) -> bool {
        let found = self.connections.iter().find(|joined| joined.number == number);
        found.is_some_and(|joined| self.frozen.iter().any(|part| joined.name.contains(part)))
    }

    /// Returns whether the piece at hand is to be torn, is the first behind a torn one, or neither.
    fn take_tear(&mut self, number: u64) -> Tear {
        let found = self.connections.iter_mut().find(|joined| joined.number == number);
        found.map_or(Tear::No, |joined| match joined.tear {
            Tear::AtNextPiece => std::mem::replace(&mut joined.tear, Tear::Done),
            tear => tear,
        })
    }

    fn close(&mut self, part: &str) -> usize {
        let named = self.connections.extract_if(.., |joined| joined.name.contains(part));
        named.map(|joined| joined.shut()).count()
    }
}

impl Joined {
    fn shut(&self) {
        for socket in &self.sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Proxy {
    /// Starts a proxy to `server`, on a port of its own.
    ///
    /// # Errors
    ///
    /// Returns an error if no port can be opened.
    pub fn to(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("opening a proxy")?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared { server, state: Mutex::default(), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept_from(&listener));
        Ok(Self { addr, shared })
    }

    /// Returns the address that clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the names of the open connections, as the clients gave them.
    pub fn names(&self) -> Vec<String> {
        self.shared.lock().connections.iter().map(|joined| joined.name.clone()).collect()
    }

    /// Closes all connections. New connections are accepted.
    pub fn cut(&self) {
        self.cut_named("");
    }

    /// Closes the connections whose names contain `part`, and returns their number. Data that a
    /// frozen connection held back is lost.
    pub fn cut_named(&self, part: &str) -> usize {
        let closed = self.shared.lock().close(part);
        self.shared.changed.notify_all();
        closed
    }

    /// Closes each open connection in the middle of the next piece that it forwards, in whichever
    /// direction that comes. A receiver over TLS has a part of a record then. An answer to that
    /// part is not forwarded.
    pub fn tear(&self) {
        let mut state = self.shared.lock();
        state.connections.iter_mut().for_each(|joined| joined.tear = Tear::AtNextPiece);
    }

    /// Closes every new connection at once, until [`accept`](Self::accept).
    pub fn refuse(&self) {
        self.shared.lock().refuses = true;
    }

    /// Accepts new connections again.
    pub fn accept(&self) {
        self.shared.lock().refuses = false;
    }

    /// Stops forwarding in both directions and keeps the connections open, like a pulled cable.
    /// [`thaw`](Self::thaw) forwards the held-back data late.
    pub fn freeze(&self) {
        self.freeze_named("");
    }

    /// Freezes the connections whose names contain `part`, including connections opened later.
    pub fn freeze_named(&self, part: &str) {
        self.shared.lock().frozen.push(part.to_owned());
    }

    /// Ends every [`freeze`](Self::freeze) and [`freeze_named`](Self::freeze_named).
    pub fn thaw(&self) {
        self.shared.lock().frozen.clear();
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
                (state.ended, state.refuses || state.connections.len() >= MOST_CONNECTIONS)
            };
            if ended {
                return;
            }
            if !refuses {
                // If the server is down, the client sees its connection close.
                let _ = self.join(client);
            }
        }
    }

    /// Connects a client with the server.
    fn join(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(self.server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let sockets = [client.try_clone()?, server.try_clone()?];
        let number = {
            let mut state = self.lock();
            state.next += 1;
            let number = state.next;
            let name = String::new();
            state.connections.push(Joined { number, name, sockets, tear: Tear::No });
            number
        };
        let sniffer = Some(Sniffer::default());
        self.copy_in_thread(number, client.try_clone()?, server.try_clone()?, sniffer);
        self.copy_in_thread(number, server, client, None);
        Ok(())
    }

    fn copy_in_thread(
        self: &Arc<Self>,
        number: u64,
        from: TcpStream,
        to: TcpStream,
        sniffer: Option<Sniffer>,
    ) {
        let shared = Arc::clone(self);
        thread::spawn(move || {
            let _ = shared.copy(number, &from, &to, sniffer);
            for socket in [from, to] {
                let _ = socket.shutdown(Shutdown::Both);
            }
            shared.lock().connections.retain(|joined| joined.number != number);
        });
    }

    fn copy(
        &self,
        number: u64,
        mut from: &TcpStream,
        mut to: &TcpStream,
        mut sniffer: Option<Sniffer>,
    ) -> std::io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let count = from.read(&mut piece)?;
            if count == 0 {
                return Ok(());
            }
            if let Some(name) = sniffer.as_mut().and_then(|sniffer| sniffer.take(&piece[..count])) {
                self.call(number, name);
            }
            self.wait_while_frozen(number);
            let tear = self.lock().take_tear(number);
            match tear {
                Tear::No => to.write_all(&piece[..count])?,
                Tear::AtNextPiece => return to.write_all(&piece[..count / 2]),
                // The other direction closes the connection once its half is written.
                Tear::Done => {}
            }
        }
    }

    fn call(&self, number: u64, name: String) {
        let mut state = self.lock();
        if let Some(joined) = state.connections.iter_mut().find(|joined| joined.number == number) {
            joined.name = name;
        }
    }

    fn wait_while_frozen(&self, number: u64) {
        let held = |state: &mut State| state.holds(number) && !state.ended;
        drop(self.changed.wait_while(self.lock(), held).unwrap_or_else(PoisonError::into_inner));
    }
}
