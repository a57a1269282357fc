//! Suspension of one thread of another process by ptrace, to simulate a hang.

#![expect(unsafe_code, reason = "the system's call for it is foreign")]

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Thread that stays stopped until this is dropped.
#[derive(Debug)]
pub(crate) struct SuspendedThread {
    let_go: Option<mpsc::Sender<()>>,
    tracer: Option<JoinHandle<()>>,
}

impl SuspendedThread {
    /// Stops the thread with this name in process `pid`.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has no such thread, or if ptrace is not permitted.
    pub(crate) fn stop(pid: u32, name: &str) -> Result<Self> {
        let tid = find(pid, name)?.with_context(|| format!("{pid} has no thread {name}"))?;
        let (let_go, wait) = mpsc::channel::<()>();
        let (held, is_held) = mpsc::channel();
        // A tracer is a thread, not a process, so a thread of its own traces until the release.
        let tracer = thread::spawn(move || {
            let _ = held.send(seize(tid));
            while wait.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                // A process does not finish exiting while a tracer may still wait for one of its
                // threads, so the tracer polls for the end.
                // SAFETY: the arguments are integers and a pointer to a live status.
                if unsafe { libc::waitpid(tid, &mut 0, libc::__WALL | libc::WNOHANG) } != 0 {
                    return;
                }
            }
            // SAFETY: the arguments are integers; the call fails for a thread that has ended.
            unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, 0, 0) };
        });
        is_held.recv().map_err(|_| anyhow!("the thread that holds another ended"))??;
        Ok(Self { let_go: Some(let_go), tracer: Some(tracer) })
    }
}

impl Drop for SuspendedThread {
    fn drop(&mut self) {
        drop(self.let_go.take());
        if let Some(tracer) = self.tracer.take() {
            let _ = tracer.join();
        }
    }
}

fn find(pid: u32, name: &str) -> Result<Option<i32>> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = thread?.path();
        // Linux keeps 15 bytes of a thread name.
        let called = fs::read_to_string(path.join("comm")).unwrap_or_default();
        if called.trim_end() == &name[..name.len().min(15)] {
            let tid = path.file_name().and_then(|tid| tid.to_str()?.parse().ok());
            return Ok(tid);
        }
    }
    Ok(None)
}

fn seize(tid: i32) -> Result<()> {
    // SAFETY: the arguments are integers and a pointer to a live status.
    let stopped = unsafe {
        libc::ptrace(libc::PTRACE_SEIZE, tid, 0, 0) == 0
            && libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0) == 0
            && libc::waitpid(tid, &mut 0, libc::__WALL) == tid
    };
    if stopped {
        return Ok(());
    }
    Err(std::io::Error::last_os_error()).context("holding a thread by ptrace")
}
