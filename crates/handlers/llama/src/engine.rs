//! The model on a thread of its own, with all the replies that it is making.
//!
//! Each step runs the next token of every reply, and of new ones a part of the prompt; the schedule
//! says how much of which. The thread never waits for a reader: a reply whose pieces are not taken
//! rests until they are.

mod choices;
mod counts;
mod pulse;
mod request;
mod waker;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use nsbridge_handler::{Emitter, Error, Finish, Result, TextPiece};

use crate::schedule::{Candidate, Limits, Memory, Schedule, Tenant, Work};
use crate::speculation::{Speculation, Tally};
use crate::{Chunk, KvCache, Model, Scratch, Table, Watch};

pub(crate) use self::choices::Choices;
pub(crate) use self::counts::{Counted, Counts};
use self::pulse::{Pulse, Sight};
use self::request::{Limit, Request};
use self::waker::{Left, Waker};

/// Between two looks whether the thread has ended.
const LOOK: Duration = Duration::from_millis(1);

/// How long the thread waits for a command at most. Nothing happens then.
const IDLE: Duration = Duration::from_secs(3600);

/// What is the operator's to decide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// How long a reply may take; one that takes longer is refused.
    pub(crate) limit: Option<Duration>,
    /// Whether keys and values are kept for those who begin alike.
    pub(crate) caching: bool,
    /// How much runs at once.
    pub(crate) limits: Limits,
}

const STOPPED: &str = "the engine's thread has stopped";

/// What is to be made, for whom.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) choices: Choices,
    /// Who may see what it computed.
    pub(crate) scope: Arc<str>,
    /// Who shares its turn, and is charged for it.
    pub(crate) account: Arc<str>,
    /// Lower is earlier, among those of its account.
    pub(crate) priority: i32,
}

/// The thread; dropped, it ends, and what it was making is not finished.
pub(crate) struct Engine {
    commands: Sender<Command>,
    /// Whether it is to look around without having been asked to.
    woken: Arc<AtomicBool>,
    policy: Policy,
    counts: Arc<Counts>,
    /// Why no step can be computed any more.
    failure: Arc<OnceLock<String>>,
    watch: Watch,
    pulse: Arc<Pulse>,
    sight: Sight,
    thread: Option<JoinHandle<()>>,
}

enum Command {
    Make(Box<Request>),
    WarmUp(oneshot::Sender<Result<()>>),
    /// Nothing of ended requests is to be used any more.
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
    /// The system gives no thread.
    pub(crate) fn start(
        mut model: Model,
        policy: Policy,
        speculation: Option<Speculation>,
    ) -> Result<Self> {
        let (commands, receiver) = channel();
        let (watch, pulse) = (model.watch(), Arc::<Pulse>::default());
        let of_draft = speculation.as_ref().and_then(Speculation::watch);
        let watches = [Some(&watch), of_draft].into_iter().flatten().cloned().collect();
        // Whom the first rank waits for has the first half of it to come.
        let sight = Sight::new(model.patience().saturating_mul(2), watches);
        let woken = Arc::new(AtomicBool::new(false));
        let counts = Arc::<Counts>::default();
        let failure = Arc::<OnceLock<String>>::default();
        let longest_draft = speculation.as_ref().map_or(0, Speculation::longest);
        counts.change(|counts| {
            (counts.blocks, counts.longest_draft) = (model.cache().free(), longest_draft);
            counts.drafting = longest_draft > 0;
        });
        let maker = Maker {
            model,
            commands: receiver,
            woken: woken.clone(),
            policy,
            running: Vec::new(),
            schedule: Schedule::default(),
            speculation,
            tally: Tally::default(),
            sequences: 0,
            scratch: Scratch::default(),
            counts: counts.clone(),
            failure: failure.clone(),
            pulse: pulse.clone(),
        };
        let thread = std::thread::Builder::new().name("nsbridge-engine".to_owned());
        let thread = thread.spawn(move || maker.run()).map_err(Error::fatal)?;
        let thread = Some(thread);
        Ok(Self { commands, woken, policy, counts, failure, watch, pulse, sight, thread })
    }

    /// Makes the rest of what was asked for, piece by piece.
    ///
    /// # Errors
    ///
    /// Whatever ended it.
    pub(crate) async fn make(&self, order: Order, emitter: Emitter<TextPiece>) -> Result<Finish> {
        let waker = Waker::new(self.commands.clone(), self.woken.clone());
        // It is dropped after the receiver, so the engine sees that nobody waits.
        let left = Left::new(waker.clone());
        let (done, finished) = oneshot::channel();
        emitter.on_change(move || waker.wake());
        let limit = self.policy.limit.map(Limit::new);
        self.send(Command::Make(Box::new(Request::new(order, emitter, done, limit))))?;
        let finish = finished.await.unwrap_or_else(|_| Err(stopped()));
        left.answered();
        finish
    }

    /// Runs one token, so that all memory is there.
    ///
    /// # Errors
    ///
    /// The model cannot be run.
    pub(crate) async fn warm_up(&self) -> Result<()> {
        let (done, finished) = oneshot::channel();
        self.send(Command::WarmUp(done))?;
        finished.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Forgets what it keeps of ended requests, before the next step.
    pub(crate) fn forget(&self) {
        // An engine that has ended keeps nothing.
        let _ = self.commands.send(Command::Forget);
    }

    /// Why it cannot make replies any more.
    pub(crate) fn failure(&self) -> Option<String> {
        let stopped = || self.has_stopped().then(|| STOPPED.to_owned());
        let lost = || self.watch.lost();
        self.failure.get().cloned().or_else(lost).or_else(stopped).or_else(|| self.hangs())
    }

    fn has_stopped(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// How the thread does not go on.
    fn hangs(&self) -> Option<String> {
        let late = |limit: Duration| {
            let who = match self.watch.ranks() {
                1 => "the model".to_owned(),
                ranks => format!("rank 0 of {ranks}"),
            };
            format!("{who} did not answer within {} s", limit.as_secs_f64())
        };
        self.sight.too_long(&self.pulse).map(late)
    }

    /// What it has done so far, and has to do.
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
        // One that hangs cannot be waited for.
        while !self.has_stopped() {
            if self.watch.lost().or_else(|| self.hangs()).is_some() {
                return;
            }
            std::thread::sleep(LOOK);
        }
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// One that the schedule knows.
struct Running {
    request: Request,
    tenant: Tenant,
}

/// The thread's own side.
struct Maker {
    model: Model,
    commands: Receiver<Command>,
    woken: Arc<AtomicBool>,
    policy: Policy,
    /// In the order of their coming.
    running: Vec<Running>,
    schedule: Schedule,
    speculation: Option<Speculation>,
    tally: Tally,
    /// Replies that there have been.
    sequences: u64,
    scratch: Scratch,
    counts: Arc<Counts>,
    failure: Arc<OnceLock<String>>,
    pulse: Arc<Pulse>,
}

impl Maker {
    fn run(mut self) {
        while self.hear() {
            self.pulse.works();
            self.woken.swap(false, Ordering::SeqCst);
            self.running.iter_mut().for_each(|running| running.request.look());
            // Before the step as well: others may need the memory of who was stopped.
            self.bury();
            self.step();
            self.bury();
            self.count();
            self.pulse.rests();
        }
    }

    /// Takes back what those had that are over.
    fn bury(&mut self) {
        for mut over in self.running.extract_if(.., |running| running.request.is_over()) {
            over.request.order.choices.release(self.model.cache());
            self.schedule.end(over.tenant);
            if let Some(speculation) = &mut self.speculation {
                let sequences = over.request.order.choices.sequences();
                sequences.for_each(|sequence| speculation.drafter().forget(sequence));
            }
        }
    }

    /// Takes all commands, and waits for one if there is nothing else to do; `false` at the end.
    fn hear(&mut self) -> bool {
        loop {
            let command = if self.running.iter().any(|running| running.request.work().tokens > 0) {
                match self.commands.try_recv() {
                    Ok(command) => command,
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => return false,
                }
            } else {
                match self.commands.recv_timeout(self.patience()) {
                    Ok(command) => command,
                    // A reply that nobody reads on may be over all the same.
                    Err(RecvTimeoutError::Timeout) => return true,
                    Err(RecvTimeoutError::Disconnected) => return false,
                }
            };
            match command {
                Command::Make(mut request) => {
                    request.order.choices.number(&mut self.sequences);
                    let tenant = self.schedule.begin(&request.order.account);
                    self.running.push(Running { request: *request, tenant });
                }
                Command::WarmUp(done) => {
                    self.pulse.works();
                    let _ = done.send(self.warm_up());
                    self.pulse.rests();
                }
                Command::Forget => {
                    self.model.cache().forget_all();
                    if let Some(speculation) = &mut self.speculation {
                        speculation.drafter().forget_all();
                    }
                }
                // There may be nothing to run, and yet a piece to offer or a reply to end.
                Command::Look => return true,
                Command::End => return false,
            }
        }
    }

    /// How long there is nothing to do if no command comes.
    fn patience(&self) -> Duration {
        let limits = self.running.iter().filter_map(|running| running.request.limit());
        limits.map(Limit::left).min().unwrap_or(IDLE)
    }

    fn warm_up(&mut self) -> Result<()> {
        let mut table = Table::default();
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

    fn step(&mut self) {
        let begun = Instant::now();
        let plan = self.plan();
        let tokens: usize = plan.iter().sum();
        if tokens == 0 {
            return self.refuse_what_waits_for_nothing();
        }
        let planned = begun.elapsed();
        self.draft(&plan);
        self.pulse.works();
        let drafted = begun.elapsed();
        self.run_tokens(&plan);
        let (draft_time, model_time) = (drafted - planned, begun.elapsed() - drafted);
        let cache = self.model.cache();
        for Running { request, .. } in &mut self.running {
            let Order { choices, scope, .. } = &mut request.order;
            choices.roll_back(cache);
            if self.policy.caching {
                choices.remember(cache, scope);
            }
            choices.settle(cache, scope);
        }
        let schedule_time = begun.elapsed().saturating_sub(draft_time + model_time);
        self.counts.change(|counts| {
            counts.steps += 1;
            counts.tokens += tokens as u64;
            counts.draft_time += draft_time;
            counts.model_time += model_time;
            counts.schedule_time += schedule_time;
        });
    }

    /// Tells how things stand.
    fn count(&mut self) {
        let running =
            self.running.iter().filter(|running| running.request.order.choices.has_memory());
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

    /// How many tokens of each request the next step runs.
    fn plan(&mut self) -> Vec<usize> {
        let candidate = |running: &Running| Candidate {
            tenant: running.tenant,
            priority: running.request.order.priority,
            work: running.request.work(),
            weight: running.request.order.choices.weight(),
            begun: running.request.order.choices.has_memory(),
        };
        let candidates: Vec<_> = self.running.iter().map(candidate).collect();
        let Self { model, running, counts, .. } = self;
        let mut memory = Blocks { cache: model.cache(), counts, running };
        self.schedule.plan(&candidates, self.policy.limits, &mut memory)
    }

    /// Drafts what the replies may go on with that have their next token in this step.
    fn draft(&mut self, plan: &[usize]) {
        let Self { model, running, speculation, tally, policy, counts, pulse, .. } = self;
        let Some(drafting) = speculation else { return };
        let rows = plan.iter().sum();
        let parts = running.iter_mut().zip(plan).filter(|(_, tokens)| **tokens > 0);
        let undrafted = parts.flat_map(|(running, tokens)| {
            let Order { choices, scope, .. } = &mut running.request.order;
            choices.undrafted(*tokens, scope)
        });
        let (undrafted, room) = (undrafted.collect(), policy.limits.tokens - rows);
        if drafting.watch().is_none() {
            pulse.rests();
        }
        if let Err(error) = drafting.draft(undrafted, (rows, room), tally, model.cache()) {
            // As of `forward`, it quotes no request.
            tracing::warn!("the draft has failed, and replies go on without: {error}");
            *speculation = None;
            counts.change(|counts| counts.drafting = false);
        }
    }

    /// Runs what is planned, and takes what follows from it.
    fn run_tokens(&mut self, plan: &[usize]) {
        let Self { model, running, speculation, tally, scratch, failure, .. } = self;
        let parts = running.iter_mut().zip(plan).filter(|(_, tokens)| **tokens > 0);
        let mut chunks: Vec<_> = parts
            .flat_map(|(running, tokens)| running.request.order.choices.chunks(*tokens))
            .collect();
        let rows: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        let wanted: usize = chunks.iter().map(|chunk| chunk.logits).sum();
        let begun = Instant::now();
        let logits = match model.forward(&mut chunks) {
            Ok(logits) => logits,
            Err(error) => {
                // It is of ranks and of the engine's own mistakes, and quotes no request.
                let why = failure.get_or_init(|| error.to_string());
                let tell = |running: &mut Running| {
                    running.request.tell(Err(Error::fatal(why.clone())));
                };
                return running.iter_mut().for_each(tell);
            }
        };
        // A prompt's rows cost less: hardly any of them has logits.
        if let Some(speculation) = speculation.as_mut().filter(|_| rows == wanted) {
            speculation.learn_cost(rows, begun.elapsed().as_secs_f64());
        }
        let mut rows = logits.rows();
        for (Running { request, .. }, _) in
            running.iter_mut().zip(plan).filter(|(_, tokens)| **tokens > 0)
        {
            request.order.choices.next(&mut rows, scratch, tally);
            request.collect();
        }
    }

    /// Nobody can run, and somebody is to: it would be so in the next step too.
    fn refuse_what_waits_for_nothing(&mut self) {
        let waiting = self.running.iter_mut().map(|running| &mut running.request);
        if let Some(request) = waiting.into_iter().find(|request| request.work().tokens > 0) {
            request.tell(Err(Error::retry("there is too little memory for keys and values")));
        }
    }
}

/// The cache, as the schedule hands it out.
struct Blocks<'a> {
    cache: &'a mut KvCache,
    counts: &'a Counts,
    running: &'a mut [Running],
}

impl Memory for Blocks<'_> {
    /// With what others have computed, or this one before it gave its memory back.
    fn begin(&mut self, index: usize) -> Work {
        let Order { choices, scope, .. } = &mut self.running[index].request.order;
        if let Some((hits, misses)) = choices.recall(self.cache, scope) {
            self.counts.change(|counts| {
                counts.cache_hits += hits as u64;
                counts.cache_misses += misses as u64;
            });
        }
        choices.work()
    }

    fn reserve(&mut self, index: usize, tokens: usize) -> bool {
        self.running[index].request.order.choices.reserve(self.cache, tokens)
    }

    fn preempt(&mut self, index: usize) {
        self.running[index].request.order.choices.release(self.cache);
    }

    fn shrink(&mut self, index: usize) -> Option<Work> {
        let choices = &mut self.running[index].request.order.choices;
        choices.shrink(self.cache).then(|| choices.work())
    }
}
