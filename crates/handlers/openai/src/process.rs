//! Server that the worker has started: its process group and its end.

use std::fs::File;
use std::io::{self, PipeWriter};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use nsbridge_base::child::{Exit, remove_worker_variables};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::watch;

use crate::output::Output;

/// Program of the guard: it waits for the worker's end, however that comes, and kills its own group.
const GUARD: [&str; 2] = ["-c", "read -r _; kill -KILL 0"];

/// Server in a process group of its own. Dropping it kills the group.
#[derive(Debug)]
pub(crate) struct Process {
    group: Group,
    exited: watch::Receiver<Option<Exit>>,
    output: Arc<Output>,
}

/// Id of the process group, while it is certain that no other group has it.
type Group = Arc<Mutex<Option<Pid>>>;

impl Process {
    /// Starts the server. All of its output goes to `file`.
    ///
    /// # Errors
    ///
    /// Returns an error if the program cannot be started.
    pub(crate) fn start(command: &[String], file: Option<File>) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let mut child = spawn(command, writer)?;
        let pid = Pid::from_child(&child);
        let guard = guard(pid);
        let output = Output::read(reader, file);
        let (guard, output) = match (guard, output) {
            (Ok(guard), Ok(output)) => (guard, output),
            (Err(error), _) | (_, Err(error)) => {
                let _ = kill_process_group(pid, Signal::KILL);
                let _ = child.wait();
                return Err(error);
            }
        };
        let group: Group = Arc::new(Mutex::new(Some(pid)));
        let (tell, exited) = watch::channel(None);
        let reaped = group.clone();
        let body = move || reap(child, guard, pid, &reaped, &tell);
        let this = Self { group, exited, output };
        thread::Builder::new().name("nsbridge-openai-server".to_owned()).spawn(body)?;
        Ok(this)
    }

    /// Waits for the server's end.
    pub(crate) async fn exit(&self) -> Exit {
        let mut exited = self.exited.clone();
        exited.wait_for(Option::is_some).await.ok().and_then(|exit| *exit).unwrap_or(Exit::Unknown)
    }

    /// Returns the server's end, if it has ended.
    pub(crate) fn exited(&self) -> Option<Exit> {
        *self.exited.borrow()
    }

    /// Returns what is known of the output.
    pub(crate) fn output(&self) -> &Output {
        &self.output
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(group) = *self.group.lock() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn spawn(command: &[String], writer: PipeWriter) -> io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).process_group(0).stdin(Stdio::null());
    command.stdout(writer.try_clone()?).stderr(writer);
    remove_worker_variables(&mut command);
    command.spawn()
}

/// Starts the guard of a process group. It ends the group if this process ends without doing so.
fn guard(group: Pid) -> io::Result<Child> {
    let mut guard = Command::new("/bin/sh");
    guard.args(GUARD).env_clear().process_group(group.as_raw_nonzero().get());
    guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    guard.spawn()
}

/// Waits for the end of the server, kills what is left of its group, and reaps it.
fn reap(
    mut child: Child,
    mut guard: Child,
    pid: Pid,
    group: &Group,
    tell: &watch::Sender<Option<Exit>>,
) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
    // The server is not reaped, so that the id of the group is still its own.
    let mut group = group.lock();
    let _ = kill_process_group(pid, Signal::KILL);
    *group = None;
    drop(group);
    let exit = child.wait().map_or(Exit::Unknown, Exit::from);
    // A guard that has its standard input closed ends by itself.
    let _ = guard.kill();
    let _ = guard.wait();
    let _ = tell.send_replace(Some(exit));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::Command;

    use rustix::process::Pid;

    use super::guard;

    #[test]
    fn a_guard_ends_the_group_when_the_worker_is_gone() {
        let mut child = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let mut guard = guard(Pid::from_child(&child)).unwrap();
        // The kernel closes it, however the worker ends.
        drop(guard.stdin.take());
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert_eq!(guard.wait().unwrap().signal(), Some(9));
    }
}
