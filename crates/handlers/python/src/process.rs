//! One Python process: its start, its process group and its end.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::{env, fmt};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::{oneshot, watch};

use crate::messages::StopCall;
use crate::wire::frame;

/// Prefix of the environment variables that configure the worker. They may hold keys and passwords.
const OF_THE_WORKER: &[u8] = b"NSBRIDGE_";

/// Variables of the worker's service manager: a model that speaks to it would speak for the worker.
const OF_THE_SERVICE_MANAGER: [&[u8]; 3] = [b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"WATCHDOG_PID"];

/// Python process in a process group of its own. Dropping it kills the group.
#[derive(Debug)]
pub(crate) struct Process {
    group: Group,
    exited: watch::Receiver<Option<Exit>>,
    control: Mutex<StdStream>,
    /// True once the process was killed because a call in it ignored a stop.
    ignored_stop: AtomicBool,
    /// True once another process has taken over.
    retired: AtomicBool,
}

/// Id of the process group, while it is certain that no other group has it.
type Group = Arc<Mutex<Option<Pid>>>;

/// End of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(9) => f.write_str("signal 9, as when memory runs out"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unknown => f.write_str("no exit status"),
        }
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        let code = status.code().map(Self::Code);
        code.or_else(|| status.signal().map(Self::Signal)).unwrap_or(Self::Unknown)
    }
}

impl Process {
    /// Starts a process whose standard input is the other end of `control`.
    pub(crate) async fn spawn(mut command: Command, control: StdStream) -> io::Result<Self> {
        command.process_group(0);
        for name in worker_variables() {
            command.env_remove(name);
        }
        let group = Group::default();
        let (started, start) = oneshot::channel();
        let (tell, exited) = watch::channel(None);
        let reaped = group.clone();
        // The process asks the kernel to kill it when the thread ends that has started it. So this
        // thread lives as long as the process.
        let body = move || reap(command, &reaped, started, &tell);
        thread::Builder::new().name("nsbridge-python".to_owned()).spawn(body)?;
        start.await.unwrap_or_else(|_| Err(io::Error::other("the thread ended")))?;
        let (ignored_stop, retired) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { group, exited, control: Mutex::new(control), ignored_stop, retired })
    }

    /// Returns a receiver of the process's end.
    pub(crate) fn exited(&self) -> watch::Receiver<Option<Exit>> {
        self.exited.clone()
    }

    /// Waits for the process's end.
    pub(crate) async fn exit(&self) -> Exit {
        let mut exited = self.exited();
        exited.wait_for(Option::is_some).await.ok().and_then(|exit| *exit).unwrap_or(Exit::Unknown)
    }

    /// Returns true if the process can take another call.
    pub(crate) fn is_usable(&self) -> bool {
        self.exited.borrow().is_none() && !self.retired.load(Ordering::Relaxed)
    }

    /// Lets the process take no further call. It ends with the last of its calls.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Returns true if the process was killed because a call in it ignored a stop.
    pub(crate) fn ignored_stop(&self) -> bool {
        self.ignored_stop.load(Ordering::Relaxed)
    }

    /// Kills the process group, because a call ignored its stop. This is no crash.
    pub(crate) fn kill_for_stop(&self) {
        self.ignored_stop.store(true, Ordering::Relaxed);
        self.kill();
    }

    /// Kills the process group.
    pub(crate) fn kill(&self) {
        if let Some(group) = *self.group.lock() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Tells the control thread that a call must end. A process that does not read this is killed
    /// later.
    pub(crate) fn stop_call(&self, slot: usize, call: u64) {
        if let Ok(frame) = frame(&StopCall { slot, call }) {
            let _ = self.control.lock().write_all(&frame);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the names of the environment variables that the process must not see.
fn worker_variables() -> impl Iterator<Item = impl AsRef<OsStr>> {
    let names = env::vars_os().map(|(name, _)| name);
    names.filter(|name| {
        let name = name.as_bytes();
        name.starts_with(OF_THE_WORKER) || OF_THE_SERVICE_MANAGER.contains(&name)
    })
}

/// Starts the process, waits for its end, kills what is left of its group, and reaps it.
fn reap(
    mut command: Command,
    group: &Group,
    started: oneshot::Sender<io::Result<()>>,
    tell: &watch::Sender<Option<Exit>>,
) {
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return drop(started.send(Err(error))),
    };
    // It holds the process's ends of the sockets.
    drop(command);
    let pid = Pid::from_child(&child);
    *group.lock() = Some(pid);
    let _ = started.send(Ok(()));
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
    end_group(&mut child, pid, group, tell);
}

/// Ends the group of a process that has ended but was not reaped, so that its id is still its own.
fn end_group(child: &mut Child, pid: Pid, group: &Group, tell: &watch::Sender<Option<Exit>>) {
    let mut group = group.lock();
    let _ = kill_process_group(pid, Signal::KILL);
    *group = None;
    drop(group);
    let exit = child.wait().map_or(Exit::Unknown, Exit::from);
    let _ = tell.send_replace(Some(exit));
}
