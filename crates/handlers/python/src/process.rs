//! One Python process: its start, its process group and its end.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nsbridge_base::child::{Exit, remove_worker_variables};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::{oneshot, watch};

use crate::messages::StopCall;
use crate::wire::frame;

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

impl Process {
    /// Starts a process whose standard input is the other end of `control`.
    pub(crate) async fn spawn(mut command: Command, control: StdStream) -> io::Result<Self> {
        command.process_group(0);
        remove_worker_variables(&mut command);
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
