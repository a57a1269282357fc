//! Supervisor of the Python processes: starts them, counts their crashes and starts them again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{io, thread};

use nsbridge_base::child::Exit;
use nsbridge_handler::Measure;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::crashes::Crashes;
use crate::error::Error;
use crate::messages::{FromPython, Ready, Status};
use crate::plan::Plan;
use crate::pool::Pool;
use crate::process::Process;
use crate::start::{Started, start};
use crate::wire::Wire;

/// Interval at which the source files are looked at for a change.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// State that the calls and the supervisor share.
#[derive(Debug)]
pub(crate) struct Host {
    plan: Plan,
    pub(crate) pool: Pool,
    crashes: Mutex<Crashes>,
    crashed: AtomicU64,
    killed: AtomicU64,
    /// Last values of the model's own metrics.
    pub(crate) values: Mutex<BTreeMap<String, f64>>,
    /// Reason why no process is started any more.
    broken: OnceLock<String>,
}

impl Host {
    pub(crate) fn new(plan: Plan) -> Self {
        let crashes = Crashes::new(plan.options.crashes, plan.options.crash_window());
        Self {
            plan,
            pool: Pool::new(),
            crashes: Mutex::new(crashes),
            crashed: AtomicU64::new(0),
            killed: AtomicU64::new(0),
            values: Mutex::default(),
            broken: OnceLock::new(),
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the reason why there is no process any more, if there were too many crashes.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }

    pub(crate) fn measures(&self) -> Vec<Measure> {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let (crashed, killed) = (count(&self.crashed), count(&self.killed));
        vec![
            Measure::counter(
                "python_crashes",
                "Python processes that ended by themselves",
                crashed,
            ),
            Measure::counter("python_kills", "Python processes killed after a stop", killed),
        ]
    }

    /// Keeps one process running until there were too many crashes. `first` gets the outcome of the
    /// first load.
    pub(crate) async fn keep(self: Arc<Self>, first: oneshot::Sender<Result<Ready, Error>>) {
        let mut first = Some(first);
        loop {
            let sources = self.plan.sources();
            let ended = match (start(&self.plan).await, first.take()) {
                (Ok(started), first) => {
                    let Started { process, slots, ready, control } = started;
                    slots.into_iter().for_each(|slot| self.pool.put(slot));
                    if let Some(first) = first {
                        let _ = first.send(Ok(ready));
                    }
                    match self.ended(process, control, sources).await {
                        Some(exit) => exit.to_string(),
                        None => continue,
                    }
                }
                (Err(error), Some(first)) => return drop(first.send(Err(error))),
                (Err(error), None) => nsbridge_base::chain(&error),
            };
            if self.broken().is_some() {
                return;
            }
            self.crashed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(why = ended, "the Python process ended");
            let wait = self.crashes.lock().count(Instant::now());
            let Some(wait) = wait else { return self.break_down(&ended) };
            tokio::time::sleep(wait).await;
        }
    }

    /// Waits until the process ends, and replaces it when its sources change. Returns `None` if it
    /// was killed because a call ignored its stop.
    async fn ended(
        &self,
        mut process: Arc<Process>,
        mut control: Wire,
        mut sources: Option<blake3::Hash>,
    ) -> Option<Exit> {
        let exit = loop {
            tokio::select! {
                exit = process.exit() => break exit,
                status = next_status(&mut control) => {
                    self.take(status, &process);
                    continue;
                }
                now = self.changed(sources), if self.plan.options.reload => sources = now,
            }
            match start(&self.plan).await {
                Ok(next) => {
                    process.retire();
                    (process, control) = (next.process, next.control);
                    next.slots.into_iter().for_each(|slot| self.pool.put(slot));
                    tracing::info!("the changed model is loaded");
                }
                Err(error) => {
                    let why = nsbridge_base::chain(&error);
                    tracing::warn!(
                        why,
                        "the changed model cannot be loaded; the one before goes on"
                    );
                }
            }
            self.pool.forget_unusable();
        };
        self.pool.forget_unusable();
        if !process.ignored_stop() {
            return Some(exit);
        }
        self.killed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("a call ignored its stop: the Python process was killed");
        None
    }

    /// Takes over the state of a model. A model that can answer no further request is ended.
    fn take(&self, status: Status, process: &Process) {
        *self.values.lock() = status.measures;
        if let Some(why) = status.broken {
            let _ = self.broken.set(why);
            self.pool.close();
            process.kill();
        }
    }

    /// Waits until the source files differ from these.
    async fn changed(&self, sources: Option<blake3::Hash>) -> Option<blake3::Hash> {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = self.plan.sources();
            if now.is_some() && now != sources {
                return now;
            }
        }
    }

    fn break_down(&self, why: &str) {
        let (crashes, window) = (self.plan.options.crashes, self.plan.options.crash_window_s);
        let why = format!("{crashes} crashes of Python within {window} s, the last one: {why}");
        let _ = self.broken.set(why);
        self.pool.close();
    }
}

/// Returns the next state that a process tells. Waits forever once it tells none.
async fn next_status(control: &mut Wire) -> Status {
    match control.next().await {
        Ok(Some(FromPython::Status(status))) => status,
        _ => std::future::pending().await,
    }
}

/// Thread that runs the supervisor and the ends of calls that were given up. It ends when this handle
/// is dropped, and all Python processes with it.
#[derive(Debug)]
pub(crate) struct Background {
    runtime: Handle,
    _ended: oneshot::Sender<()>,
}

impl Background {
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (ended, end) = oneshot::channel();
        let body = move || drop(runtime.block_on(end));
        thread::Builder::new().name("nsbridge-pythons".to_owned()).spawn(body)?;
        Ok(Self { runtime: handle, _ended: ended })
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}
