//! Engine thread: runs the model in steps and holds all requests that are being answered.
//!
//! Each step runs the next token of every reply and chunks of the prompts of new requests; the
//! schedule decides how many tokens of each. The thread never blocks on a consumer: while the
//! pieces of a reply are not taken, the reply does not run.

mod blocks;
mod counts;
mod outlet;
mod pending;
mod pool;
mod prompt_pieces;
mod prompt_rows;
mod request;
mod sequence;
mod sequence_group;
mod step_budget;
mod steps;
mod waker;
mod watchdog;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use nsbridge_handler::{Error, Result};

use crate::kv::BlockTable;
use crate::network::{Chunk, Model, Watch};
use crate::sample::Scratch;
use crate::schedule::{Limits, Schedule, Tenant};
use crate::speculation::{Speculation, Tally};

pub(crate) use self::counts::{Counted, Counts};
use self::outlet::Outlet;
pub(crate) use self::pending::Pending;
pub(crate) use self::pool::Pool;
pub(crate) use self::prompt_pieces::PromptPieces;
pub(crate) use self::prompt_rows::PromptRows;
use self::request::{Limit, Request};
pub(crate) use self::sequence_group::SequenceGroup;
use self::step_budget::StepBudget;
use self::waker::Waker;
use self::watchdog::{Heartbeat, Watchdog};

/// Polling interval of `drop`.
const DROP_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Time limit of an idle wait for a command. Its expiry has no effect.
const IDLE: Duration = Duration::from_secs(3600);

/// Settings of the engine that the operator chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Time limit of a reply; a reply that exceeds it is refused.
    pub(crate) limit: Option<Duration>,
    /// True if the prefix cache is on.
    pub(crate) caching: bool,
    /// Maximum tokens and requests of a step.
    pub(crate) limits: Limits,
    /// Bound of the time of a step with prompts beside replies.
    pub(crate) max_step: Duration,
}

const STOPPED: &str = "the engine's thread has stopped";

/// Replies to generate, with the identity of their requester.
#[derive(Debug)]
pub(crate) struct EngineRequest {
    pub(crate) group: SequenceGroup,
    /// Prefix-cache scope: only requests in this scope may use the computed keys and values.
    pub(crate) scope: Arc<str>,
    /// Tenant that is charged for the request and whose turn it takes.
    pub(crate) account: Arc<str>,
    /// Priority among the requests of its account; lower values run earlier.
    pub(crate) priority: i32,
    /// Time of the call, from which the time limit of the reply counts.
    pub(crate) arrived: Instant,
}

/// Handle of the engine thread. Dropping it ends the thread and abandons unfinished replies.
pub(crate) struct Engine {
    commands: Sender<Command>,
    /// True from a wake-up until the thread next checks its requests.
    woken: Arc<AtomicBool>,
    policy: Policy,
    counts: Arc<Counts>,
    /// Reason why the model cannot run another step.
    failure: Arc<OnceLock<String>>,
    watch: Watch,
    heartbeat: Arc<Heartbeat>,
    watchdog: Watchdog,
    thread: Option<JoinHandle<()>>,
}

enum Command {
    Make(Box<Request>),
    WarmUp(oneshot::Sender<Result<()>>),
    /// Clear the prefix caches of the target and the draft.
    Forget,
    Look,
    End,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Engine")
    }
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the system cannot start a thread.
    pub(crate) fn start(
        mut model: Model,
        policy: Policy,
        speculation: Option<Speculation>,
    ) -> Result<Self> {
        let (commands, receiver) = channel();
        let (watch, heartbeat) = (model.watch(), Arc::<Heartbeat>::default());
        let of_draft = speculation.as_ref().and_then(Speculation::watch);
        let watches = [Some(&watch), of_draft].into_iter().flatten().cloned().collect();
        // The first half is for the ranks that rank 0 waits for, so that its own timeout fires
        // first.
        let watchdog = Watchdog::new(model.patience().saturating_mul(2), watches);
        let woken = Arc::new(AtomicBool::new(false));
        let counts = Arc::<Counts>::default();
        let failure = Arc::<OnceLock<String>>::default();
        let longest_draft = speculation.as_ref().map_or(0, Speculation::longest);
        counts.change(|counts| {
            (counts.blocks, counts.longest_draft) = (model.cache().free(), longest_draft);
            counts.drafting = longest_draft > 0;
        });
        let engine_loop = EngineLoop {
            model,
            commands: receiver,
            woken: woken.clone(),
            policy,
            running: Vec::new(),
            schedule: Schedule::default(),
            budget: StepBudget::new(policy.max_step),
            speculation,
            tally: Tally::default(),
            sequences: 0,
            scratch: Scratch::default(),
            counts: counts.clone(),
            failure: failure.clone(),
            heartbeat: heartbeat.clone(),
        };
        let thread = std::thread::Builder::new().name("nsbridge-engine".to_owned());
        let thread = Some(thread.spawn(move || engine_loop.run()).map_err(Error::fatal)?);
        Ok(Self { commands, woken, policy, counts, failure, watch, heartbeat, watchdog, thread })
    }

    /// Starts to generate and emit the reply. Pieces of an earlier attempt are not repeated.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread has stopped.
    pub(crate) fn begin(&self, input: EngineRequest, outlet: Box<dyn Outlet>) -> Result<Pending> {
        let waker = Waker::new(self.commands.clone(), self.woken.clone());
        let (done, pending) = Pending::new(waker.clone());
        outlet.on_change(Box::new(move || waker.wake()));
        let request = Request::new(input, outlet, done, self.policy.limit);
        self.send(Command::Make(Box::new(request)))?;
        Ok(pending)
    }

    /// Runs one token, so that all memory is allocated.
    ///
    /// # Errors
    ///
    /// Returns an error if the model cannot run.
    pub(crate) async fn warm_up(&self) -> Result<()> {
        let (done, finished) = oneshot::channel();
        self.send(Command::WarmUp(done))?;
        finished.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Clears the prefix caches of the target and the draft before the next step.
    pub(crate) fn forget(&self) {
        // An engine that has ended has no cache.
        let _ = self.commands.send(Command::Forget);
    }

    /// Returns the reason why the engine cannot generate replies any more.
    pub(crate) fn failure(&self) -> Option<String> {
        let stopped = || self.has_stopped().then(|| STOPPED.to_owned());
        let lost = || self.watch.lost();
        self.failure.get().cloned().or_else(lost).or_else(stopped).or_else(|| self.hangs())
    }

    fn has_stopped(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns a description of the hang if the thread makes no progress.
    fn hangs(&self) -> Option<String> {
        let late = |limit: Duration| {
            let who = match self.watch.ranks() {
                1 => "the model".to_owned(),
                ranks => format!("rank 0 of {ranks}"),
            };
            format!("{who} did not answer within {} s", limit.as_secs_f64())
        };
        self.watchdog.overdue(&self.heartbeat).map(late)
    }

    /// Returns a snapshot of the engine's counters and gauges.
    pub(crate) fn counted(&self) -> Counted {
        self.counts.read()
    }

    fn send(&self, command: Command) -> Result<()> {
        self.commands.send(command).map_err(|_| stopped())
    }
}

fn stopped() -> Error {
    Error::fatal(STOPPED)
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::End);
        // A thread that hangs cannot be joined.
        while !self.has_stopped() {
            if self.watch.lost().or_else(|| self.hangs()).is_some() {
                return;
            }
            std::thread::sleep(DROP_POLL_INTERVAL);
        }
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Request that is known to the schedule.
struct Running {
    request: Request,
    tenant: Tenant,
}

/// State of the engine thread.
struct EngineLoop {
    model: Model,
    commands: Receiver<Command>,
    woken: Arc<AtomicBool>,
    policy: Policy,
    /// Requests in order of arrival.
    running: Vec<Running>,
    schedule: Schedule,
    budget: StepBudget,
    speculation: Option<Speculation>,
    tally: Tally,
    /// Number of sequences so far; the next sequence gets it as its id.
    sequences: u64,
    scratch: Scratch,
    counts: Arc<Counts>,
    failure: Arc<OnceLock<String>>,
    heartbeat: Arc<Heartbeat>,
}

impl EngineLoop {
    fn run(mut self) {
        while self.drain_commands() {
            self.heartbeat.expect_soon();
            self.woken.swap(false, Ordering::SeqCst);
            self.running.iter_mut().for_each(|running| running.request.look());
            // Before the step, so that the memory of stopped requests is free for others.
            self.reap_finished();
            self.step();
            self.reap_finished();
            self.count();
            self.heartbeat.allow_pause();
        }
    }

    /// Removes finished requests and frees their memory.
    fn reap_finished(&mut self) {
        for mut over in self.running.extract_if(.., |running| running.request.is_over()) {
            over.request.input.group.release(self.model.cache());
            self.schedule.end(over.tenant);
            if let Some(speculation) = &mut self.speculation {
                over.request.input.group.ids().for_each(|id| speculation.drafter().forget(id));
            }
        }
    }

    /// Handles all commands, and waits for one if no request can run. Returns false at shutdown.
    fn drain_commands(&mut self) -> bool {
        // A new request may have pieces before its first step.
        let mut is_new = false;
        loop {
            let works = |running: &Running| running.request.work().tokens > 0;
            let command = if is_new || self.running.iter().any(works) {
                match self.commands.try_recv() {
                    Ok(command) => command,
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => return false,
                }
            } else {
                match self.commands.recv_timeout(self.patience()) {
                    Ok(command) => command,
                    // The time limit of an unread reply may have passed.
                    Err(RecvTimeoutError::Timeout) => return true,
                    Err(RecvTimeoutError::Disconnected) => return false,
                }
            };
            match command {
                Command::Make(mut request) => {
                    request.input.group.number(&mut self.sequences);
                    let tenant = self.schedule.begin(&request.input.account);
                    self.running.push(Running { request: *request, tenant });
                    is_new = true;
                }
                Command::WarmUp(done) => {
                    self.heartbeat.expect_soon();
                    let _ = done.send(self.warm_up());
                    self.heartbeat.allow_pause();
                }
                Command::Forget => {
                    self.model.cache().forget_all();
                    if let Some(speculation) = &mut self.speculation {
                        speculation.drafter().forget_all();
                    }
                }
                // Even if no token can run, a piece may be due or a reply may have to end.
                Command::Look => return true,
                Command::End => return false,
            }
        }
    }

    /// Returns the time until the earliest deadline of a reply.
    fn patience(&self) -> Duration {
        let limits = self.running.iter().filter_map(|running| running.request.limit());
        limits.map(Limit::left).min().unwrap_or(IDLE)
    }

    fn warm_up(&mut self) -> Result<()> {
        let mut table = BlockTable::default();
        self.model.cache().reserve(&mut table, 1);
        let run = self.model.forward(&mut [Chunk { table: &mut table, tokens: &[0], logits: 1 }]);
        let run = run.map(drop);
        self.model.cache().release(table);
        run?;
        if let Some(speculation) = &mut self.speculation {
            speculation.warm_up(&mut self.model, self.policy.limits.tokens)?;
        }
        Ok(())
    }

    /// Updates the gauges, and the counters of drafts, preemptions and evictions.
    fn count(&mut self) {
        let running =
            self.running.iter().filter(|running| running.request.input.group.has_memory());
        let (running, all) = (running.count(), self.running.len());
        let cache = self.model.cache();
        let (free, evictions) = (cache.free(), cache.evictions());
        let preemptions = self.schedule.preemptions();
        let tally = &self.tally;
        self.counts.change(|counts| {
            (counts.drafted, counts.accepted) = (tally.drafted, tally.accepted);
            (counts.preemptions, counts.evictions) = (preemptions, evictions);
            counts.blocks_held = counts.blocks - free;
            (counts.running, counts.waiting) = (running, all - running);
        });
    }
}

#[cfg(test)]
mod tests;
