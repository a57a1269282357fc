//! Workers with a model in Python: their child processes, and the pages with their health.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{STEP_TIMEOUT, Stage};
use crate::follow::{gone, runs};
use nsbridge_chaos::http;

const MODEL: &str = include_str!("../model.py");

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Settings of the Python processes of a worker.
pub(crate) struct PythonProcesses {
    pub(crate) processes: usize,
    pub(crate) slots: usize,
    /// Number of crashes within the window at which the worker leaves.
    pub(crate) crashes: usize,
    pub(crate) crash_window_s: u64,
}

impl Stage {
    /// Makes the next workers run `model.py`, and returns the address of their pages.
    pub(crate) fn with_python_model(&mut self, python: &PythonProcesses) -> Result<SocketAddr> {
        let PythonProcesses { processes, slots, crashes, crash_window_s } = python;
        // The fingerprint covers all sources in the folder of the model.
        let folder = self.dir.join("model");
        fs::create_dir_all(&folder)?;
        let file = folder.join("model.py");
        fs::write(&file, MODEL).with_context(|| format!("writing {}", file.display()))?;
        let pages = free_address()?;
        self.settings.more = format!(
            "[handler.python]\nentry_point = \"{}\"\nprocesses = {processes}\nslots = {slots}\n\
             crashes = {crashes}\ncrash_window_s = {crash_window_s}\n\
             [health]\nlisten = \"{pages}\"\n",
            file.display()
        );
        Ok(pages)
    }

    /// Returns the Python processes of a worker.
    pub(crate) fn python_processes(&self, worker: &str) -> Result<Vec<u32>> {
        let parent = self.worker(worker)?.pid();
        let own = processes()?.into_iter().filter(|process| Some(process.parent) == parent);
        Ok(own.map(|process| process.pid).collect())
    }

    /// Kills one of the Python processes of a worker.
    pub(crate) fn kill_python(&mut self, worker: &str) -> Result<()> {
        let draw = self.random.between(0, usize::from(u16::MAX));
        let began = Instant::now();
        loop {
            let pids = self.python_processes(worker)?;
            let pid = pids.get(draw % pids.len().max(1)).and_then(|pid| i32::try_from(*pid).ok());
            // A process that has just ended is no target.
            if pid
                .and_then(Pid::from_raw)
                .is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
            {
                return self.fault("kill", "a Python process");
            }
            ensure!(began.elapsed() < STEP_TIMEOUT, "{worker} starts no Python process");
            sleep(LOOK_EVERY);
        }
    }

    /// Kills the process of vLLM's engine, which the Python process of a worker has started.
    pub(crate) fn kill_vllm_engine(&self, worker: &str) -> Result<()> {
        let pythons = self.python_processes(worker)?;
        let started = processes()?.into_iter().filter(|process| pythons.contains(&process.parent));
        let mut started = started.filter(|process| is_vllm_engine(process.pid));
        let engine = started.next().and_then(|process| i32::try_from(process.pid).ok());
        let engine = engine.and_then(Pid::from_raw);
        let engine = engine.with_context(|| format!("{worker} has no process of vLLM's engine"))?;
        kill_process(engine, Signal::KILL).context("killing vLLM's engine")?;
        self.fault("kill", "vLLM's engine")
    }

    /// Lets a worker leave in order, and waits until its Python processes have ended.
    pub(crate) fn dismiss_with_python(&mut self, worker: &str) -> Result<()> {
        let groups = self.python_processes(worker)?;
        self.dismiss(worker)?;
        until_no_process_of(&groups)
    }

    /// Checks that a worker is in its first life, and that its page says so.
    pub(crate) fn still_lives(&mut self, worker: &str, pages: SocketAddr) -> Result<()> {
        self.follow.read()?;
        ensure!(!gone(&self.follow.lines, &format!("{worker}.0"), 1), "{worker} has left");
        let (status, body) = self.page(pages, "/livez")?;
        ensure!(status == 200, "/livez of {worker} answers {status}: {body}");
        Ok(())
    }

    /// Returns a metric of a worker.
    pub(crate) fn metric(&self, pages: SocketAddr, name: &str) -> Result<f64> {
        let (_, body) = self.page(pages, "/metrics")?;
        let of =
            |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let line = body.lines().find(|line| of(line));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.with_context(|| format!("the worker has no metric {name}"))
    }

    /// Returns status and body of a page.
    fn page(&self, pages: SocketAddr, path: &str) -> Result<(u16, String)> {
        self.runtime.block_on(async {
            let response = http::send(pages, "GET", path, "", "").await?;
            Ok((response.status, response.whole().await?))
        })
    }

    /// Returns the number of runs of these requests.
    pub(crate) fn runs_of(&mut self, asks: &[usize]) -> Result<usize> {
        self.follow.read()?;
        Ok(runs(&self.follow.lines, asks))
    }
}

/// Returns the address of a port that is free again at once, so that each life of a worker takes it.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Process that has not ended.
struct Process {
    pid: u32,
    parent: u32,
    group: u32,
}

/// Returns all processes of this machine.
fn processes() -> Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // The process may have ended since.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in parentheses may hold anything.
        let Some((_, fields)) = stat.rsplit_once(") ") else { continue };
        let mut fields = fields.split(' ');
        let dead = fields.next().is_none_or(|state| matches!(state, "Z" | "X"));
        let mut number = || fields.next()?.parse().ok();
        if let (false, Some(parent), Some(group)) = (dead, number(), number()) {
            found.push(Process { pid, parent, group });
        }
    }
    Ok(found)
}

/// Returns true for a process that vLLM has named so.
fn is_vllm_engine(pid: u32) -> bool {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.starts_with("VLLM::EngineCore")
}

/// Waits until no process of these groups is left.
pub(crate) fn until_no_process_of(groups: &[u32]) -> Result<()> {
    let began = Instant::now();
    while processes()?.iter().any(|process| groups.contains(&process.group)) {
        ensure!(began.elapsed() < STEP_TIMEOUT, "a process of a Python process outlives it");
        sleep(LOOK_EVERY);
    }
    Ok(())
}
