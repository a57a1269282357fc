//! Notices to the service manager that started this process, as systemd does with `Type=notify`.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::future::pending;
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// Interval at which the state of the service is read.
const STATE_INTERVAL: Duration = Duration::from_millis(200);

/// Interval at which the time limit of a start is extended.
const START_EXTENSION_INTERVAL: Duration = Duration::from_secs(10);

/// Time by which the limit of a start is extended. A service that hangs is ended after it.
const START_EXTENSION: Duration = Duration::from_secs(60);

/// Time after which a start is not extended any more: a load may hang in a process that is alive.
const LONGEST_START: Duration = Duration::from_secs(60 * 60);

/// Connection to the service manager. Without `NOTIFY_SOCKET` in the environment it does nothing.
///
/// A notice never blocks, and its failure is ignored: the service works without its manager.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Time after which the manager ends a service that sends no ping.
    watchdog: Option<Duration>,
}

/// State of a service, as its health pages show it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceState {
    /// True while `/livez` answers 200. Only then is the watchdog pinged.
    pub alive: bool,
    /// True while `/readyz` answers 200.
    pub ready: bool,
    /// State in a few words, for `systemctl status`.
    pub status: String,
}

impl ServiceState {
    /// Creates the state of a service.
    pub fn new(alive: bool, ready: bool, status: impl Into<String>) -> Self {
        Self { alive, ready, status: status.into() }
    }
}

impl ServiceManager {
    /// Finds the service manager by the variables `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` among
    /// those of the environment.
    pub fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let (mut socket, mut watchdog, mut process) = (None, None, None);
        for (name, value) in variables {
            match name.as_bytes() {
                b"NOTIFY_SOCKET" => socket = connect(&value),
                b"WATCHDOG_USEC" => watchdog = number(&value),
                b"WATCHDOG_PID" => process = Some(number(&value)),
                _ => {}
            }
        }
        // The pings that a parent asks for are not those of this process.
        let own = Some(u64::from(std::process::id()));
        let is_ours = process.is_none_or(|process| process == own);
        let watchdog = watchdog.filter(|limit| is_ours && *limit > 0).map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// Follows the state of a service for as long as it runs. Tells the manager the status, that the service
    /// is ready, and that it stops; extends the time limit of a start while the service is alive; and pings the
    /// watchdog while it is.
    ///
    /// `stopping` ends when the service begins to stop, with the time that it may take.
    pub async fn follow(
        &self,
        state: impl Fn() -> ServiceState,
        stopping: impl Future<Output = Duration>,
    ) -> Infallible {
        if self.socket.is_none() {
            return pending().await;
        }
        let mut stopping = pin!(stopping);
        let mut ticks = ticks(STATE_INTERVAL);
        let mut pings = self.watchdog.map(|limit| self::ticks(limit / 2));
        let mut told = Told::default();
        loop {
            tokio::select! {
                biased;
                limit = &mut stopping, if told.stopping.is_none() => {
                    told.stopping = Some(Stopping { limit, sent: false });
                    self.tell_stop(&mut told);
                }
                () = next(&mut pings) => {
                    if state().alive {
                        self.send("WATCHDOG=1");
                    }
                }
                _ = ticks.tick() => self.tell(state(), &mut told),
            }
        }
    }

    /// Tells what has changed. A notice that was not taken is sent again at the next call.
    fn tell(&self, state: ServiceState, told: &mut Told) {
        self.tell_stop(told);
        if told.status.as_ref() != Some(&state.status)
            && self.send(&format!("STATUS={}", state.status))
        {
            told.status = Some(state.status);
        }
        if told.ready || told.stopping.is_some() {
            return;
        }
        if state.ready {
            told.ready = self.send("READY=1");
        } else if state.alive
            && told.began.is_none_or(|at| at.elapsed() < LONGEST_START)
            && told.extended.is_none_or(|at| at.elapsed() >= START_EXTENSION_INTERVAL)
            && self.send(&format!("EXTEND_TIMEOUT_USEC={}", START_EXTENSION.as_micros()))
        {
            told.extended = Some(Instant::now());
            told.began.get_or_insert_with(Instant::now);
        }
    }

    fn tell_stop(&self, told: &mut Told) {
        if let Some(Stopping { limit, sent }) = &mut told.stopping
            && !*sent
        {
            let limit = limit.as_micros();
            *sent = self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={limit}"));
        }
    }

    /// Sends a notice, and returns true if the manager's socket has taken it.
    fn send(&self, notice: &str) -> bool {
        let Some((socket, address)) = &self.socket else { return false };
        socket.send_to_addr(notice.as_bytes(), address).is_ok()
    }
}

/// Notices that were sent.
#[derive(Debug, Default)]
struct Told {
    status: Option<String>,
    ready: bool,
    stopping: Option<Stopping>,
    /// Time of the first extension of the start.
    began: Option<Instant>,
    /// Time of the last extension of the start.
    extended: Option<Instant>,
}

/// Stop that has begun.
#[derive(Debug)]
struct Stopping {
    /// Time that it may take.
    limit: Duration,
    sent: bool,
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every.max(Duration::from_millis(1)));
    // A process that was stopped for a time has one to catch up with, not all.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn next(ticks: &mut Option<Interval>) {
    match ticks {
        Some(ticks) => drop(ticks.tick().await),
        None => pending().await,
    }
}

fn number(value: &OsStr) -> Option<u64> {
    value.to_str()?.parse().ok()
}

/// Makes a socket for notices to this address: a path, or an abstract name behind `@`.
fn connect(address: &OsStr) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match address.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(address),
        _ => return None,
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, address.ok()?))
}

#[cfg(test)]
mod tests;
