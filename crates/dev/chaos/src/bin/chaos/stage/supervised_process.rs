//! Supervised process: restarted when it ends, and killed at the end of the round.

use std::io::Write;
use std::process::{Child, ChildStdin, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::journal::{Journal, What};

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Supervised process with a name; between two lives there is no process.
#[derive(Debug)]
pub(super) struct SupervisedProcess {
    state: Arc<Mutex<State>>,
    watch: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    /// Current process, with the pipe whose end makes it exit.
    process: Option<(Child, ChildStdin)>,
    again: bool,
}

impl SupervisedProcess {
    /// Starts `command(name)`. With `again`, the process is called `name.0` and restarted as
    /// `name.1`, `name.2` .. whenever it ends.
    pub(super) fn start(
        name: &str,
        journal: &Arc<Journal>,
        again: bool,
        command: impl Fn(&str) -> Result<Command> + Send + 'static,
    ) -> Result<Self> {
        let name = name.to_owned();
        let called = move |life: usize| if again { format!("{name}.{life}") } else { name.clone() };
        let process = Some(spawn(&command, &called(0))?);
        let state = Arc::new(Mutex::new(State { process, again }));
        let (watched, journal) = (Arc::clone(&state), Arc::clone(journal));
        let watch = thread::spawn(move || {
            for life in 0.. {
                let (pid, status) = wait(&watched);
                let name = called(life);
                let _ = journal.note(What::Gone { pid, name, status });
                let mut state = lock(&watched);
                if !state.again {
                    return;
                }
                match spawn(&command, &called(life + 1)) {
                    Ok(process) => state.process = Some(process),
                    Err(error) => {
                        let why = format!("{} could not be started: {error:#}", called(life + 1));
                        let _ = journal.note(What::Broken { why });
                        return;
                    }
                }
            }
        });
        Ok(Self { state, watch: Some(watch) })
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.lock().process.as_ref().map(|(child, _)| child.id())
    }

    /// Kills the current process and returns its id, if there is one.
    pub(super) fn kill(&self) -> Option<u32> {
        let mut state = self.lock();
        let (child, _) = state.process.as_mut()?;
        child.kill().is_ok().then(|| child.id())
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let state = self.lock();
        let (child, _) = state.process.as_ref().context("the process has ended")?;
        kill_process(Pid::from_child(child), signal).context("sending a signal")
    }

    /// Writes to the standard input of the process.
    pub(super) fn say(&self, word: &str) -> Result<()> {
        let mut state = self.lock();
        let (_, stdin) = state.process.as_mut().context("the process has ended")?;
        stdin.write_all(word.as_bytes()).context("telling a process to go")
    }

    /// Kills the process and turns off restarts. Returns before the process has ended.
    pub(super) fn give_up(&self) {
        self.lock().again = false;
        self.kill();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for SupervisedProcess {
    fn drop(&mut self) {
        self.give_up();
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn(command: &impl Fn(&str) -> Result<Command>, name: &str) -> Result<(Child, ChildStdin)> {
    let mut child = command(name)?.spawn().with_context(|| format!("starting {name}"))?;
    let stdin = child.stdin.take().context("a process's input is a pipe")?;
    Ok((child, stdin))
}

/// Waits for the end of the current process and reaps it. Reaping holds the lock, so no signal goes
/// to a process id that the system has reused.
fn wait(watched: &Mutex<State>) -> (u32, String) {
    loop {
        if let Some(end) = end(&mut lock(watched).process) {
            return end;
        }
        sleep(LOOK_EVERY);
    }
}

fn end(process: &mut Option<(Child, ChildStdin)>) -> Option<(u32, String)> {
    let (child, _) = process.as_mut()?;
    let status = match child.try_wait() {
        Ok(status) => status?.to_string(),
        Err(error) => error.to_string(),
    };
    let pid = child.id();
    *process = None;
    Some((pid, status))
}
