//! The model on a thread of its own, with all the replies that it is making.
//!
//! Each step runs the next token of every reply, and of new ones a part of the prompt. The thread
//! never waits for a reader: a reply whose pieces are not taken rests until they are.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use nsbridge_handler::{Emitter, Error, Finish, Refused, Result, TextPiece};

use crate::reply::Reply;
use crate::{Chunk, Model, Scratch, Table};

/// The most tokens of a step: one of each reply that goes on, and then prompts.
const STEP_TOKENS: usize = 256;

/// How long the thread waits for a command at most. Nothing happens then.
const IDLE: Duration = Duration::from_secs(3600);

/// What is the operator's to decide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// How long a reply may take; one that takes longer is refused.
    pub(crate) limit: Option<Duration>,
    /// Whether keys and values are kept for those who begin alike.
    pub(crate) caching: bool,
}

/// The thread; dropped, it ends, and what it was making is not finished.
pub(crate) struct Engine {
    commands: Sender<Command>,
    /// Whether it is to look around without having been asked to.
    woken: Arc<AtomicBool>,
    policy: Policy,
    thread: Option<JoinHandle<()>>,
}

enum Command {
    Make(Box<Running>),
    WarmUp(oneshot::Sender<Result<()>>),
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
    pub(crate) fn start(model: Model, policy: Policy) -> Result<Self> {
        let (commands, receiver) = channel();
        let woken = Arc::new(AtomicBool::new(false));
        let maker = Maker {
            model,
            commands: receiver,
            woken: woken.clone(),
            policy,
            running: Vec::new(),
            scratch: Scratch::default(),
        };
        let thread = std::thread::Builder::new().name("nsbridge-engine".to_owned());
        let thread = thread.spawn(move || maker.run()).map_err(Error::fatal)?;
        Ok(Self { commands, woken, policy, thread: Some(thread) })
    }

    /// Makes the rest of a reply, piece by piece. What others of this scope have begun with need not
    /// be computed again.
    ///
    /// # Errors
    ///
    /// Whatever ended it.
    pub(crate) async fn make(
        &self,
        reply: Reply,
        scope: Arc<str>,
        emitter: Emitter<TextPiece>,
    ) -> Result<Finish> {
        let (done, finished) = oneshot::channel();
        let (commands, woken) = (self.commands.clone(), self.woken.clone());
        emitter.on_change(move || {
            if !woken.swap(true, Ordering::AcqRel) {
                let _ = commands.send(Command::Look);
            }
        });
        let table = Table::default();
        let limit = self.policy.limit.map(Limit::new);
        let running =
            Running { reply, scope, emitter, done: Some(done), table, waiting: None, limit };
        self.send(Command::Make(Box::new(running)))?;
        finished.await.unwrap_or_else(|_| Err(stopped()))
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

    /// Whether it can still make replies.
    pub(crate) fn lives(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    fn send(&self, command: Command) -> Result<()> {
        self.commands.send(command).map_err(|_| stopped())
    }
}

fn stopped() -> Error {
    Error::fatal("the engine's thread has stopped")
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A reply that is being made.
struct Running {
    reply: Reply,
    /// Who may see what it computed.
    scope: Arc<str>,
    emitter: Emitter<TextPiece>,
    /// `None` once it was told.
    done: Option<oneshot::Sender<Result<Finish>>>,
    /// What has been run of the reply's tokens.
    table: Table,
    /// A piece that nobody has taken yet, and the finish behind it.
    waiting: Option<(TextPiece, Option<Finish>)>,
    limit: Option<Limit>,
}

/// When a reply must be complete.
struct Limit {
    given: Duration,
    /// `None` if no clock goes so far.
    end: Option<Instant>,
}

impl Limit {
    fn new(given: Duration) -> Self {
        Self { given, end: Instant::now().checked_add(given) }
    }

    /// What is left of it.
    fn left(&self) -> Duration {
        self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    /// The client is told, and nothing is tried again: it would take as long.
    fn error(&self) -> Error {
        let seconds = self.given.as_secs_f64();
        Error::bad_input(format!(
            "the reply was not complete within this worker's `predict_timeout` of {seconds} s; ask \
             for a shorter one, read it faster, or ask again when less is going on"
        ))
    }
}

impl Running {
    fn tell(&mut self, result: Result<Finish>) {
        if let Some(done) = self.done.take() {
            let _ = done.send(result);
        }
    }

    fn is_over(&self) -> bool {
        self.done.is_none()
    }

    /// Ends it if it is to stop, and offers the waiting piece again.
    fn look(&mut self) {
        if self.done.as_ref().is_some_and(oneshot::Sender::is_canceled) {
            self.done = None;
        } else if let Err(stop) = self.emitter.check() {
            self.tell(Err(Error::Stopped(stop)));
        } else if let Some(limit) = self.limit.as_ref().filter(|limit| limit.left().is_zero()) {
            self.tell(Err(limit.error()));
        } else if let Some((piece, finish)) = self.waiting.take() {
            self.offer(piece, finish);
        }
    }

    fn offer(&mut self, piece: TextPiece, finish: Option<Finish>) {
        match (self.emitter.try_emit(&piece), finish) {
            (Ok(()), Some(finish)) => self.tell(Ok(finish)),
            (Ok(()), None) => {}
            (Err(Refused::Full), finish) => self.waiting = Some((piece, finish)),
            (Err(Refused::Stopped(stop)), _) => self.tell(Err(Error::Stopped(stop))),
        }
    }

    /// How many tokens are to be run.
    fn left(&self) -> usize {
        let ready = self.waiting.is_none() && !self.is_over();
        if ready { self.reply.tokens().len() - self.table.len() } else { 0 }
    }
}

/// The thread's own side.
struct Maker {
    model: Model,
    commands: Receiver<Command>,
    woken: Arc<AtomicBool>,
    policy: Policy,
    running: Vec<Running>,
    scratch: Scratch,
}

impl Maker {
    fn run(mut self) {
        while self.hear() {
            self.woken.store(false, Ordering::Release);
            self.running.iter_mut().for_each(Running::look);
            // Before the step as well: others may need the memory of who was stopped.
            self.bury();
            self.step();
            self.bury();
        }
    }

    /// Takes back what those had that are over.
    fn bury(&mut self) {
        for over in self.running.extract_if(.., |running| running.is_over()) {
            self.model.cache().release(over.table);
        }
    }

    /// Takes all commands, and waits for one if there is nothing else to do; `false` at the end.
    fn hear(&mut self) -> bool {
        loop {
            let command = if self.running.iter().any(|running| running.left() > 0) {
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
                Command::Make(running) => self.begin(*running),
                Command::WarmUp(done) => {
                    let _ = done.send(self.warm_up());
                }
                // There may be nothing to run, and yet a piece to offer or a reply to end.
                Command::Look => return true,
                Command::End => return false,
            }
        }
    }

    /// How long there is nothing to do if no command comes.
    fn patience(&self) -> Duration {
        let limits = self.running.iter().filter_map(|running| running.limit.as_ref());
        limits.map(Limit::left).min().unwrap_or(IDLE)
    }

    fn begin(&mut self, mut running: Running) {
        let Running { reply, scope, table, .. } = &mut running;
        self.model.cache().recall(table, scope, reply.tokens());
        reply.found(table.len());
        self.running.push(running);
    }

    fn warm_up(&mut self) -> Result<()> {
        let mut table = Table::default();
        self.model.cache().reserve(&mut table, 1);
        let run = self.model.forward(&mut [Chunk { table: &mut table, tokens: &[0], logits: 1 }]);
        let run = run.map(drop);
        self.model.cache().release(table);
        run
    }

    fn step(&mut self) {
        let counts = self.plan();
        self.run_tokens(&counts);
        if !self.policy.caching {
            return;
        }
        for running in &mut self.running {
            let Running { reply, scope, table, .. } = running;
            self.model.cache().remember(table, scope, reply.tokens());
        }
    }

    fn run_tokens(&mut self, counts: &[usize]) {
        let Self { model, running, scratch, .. } = self;
        let some = running.iter_mut().zip(counts).filter(|(_, count)| **count > 0);
        let mut chunks: Vec<_> = some
            .map(|(running, count)| {
                let done = running.table.len();
                let tokens = &running.reply.tokens()[done..done + count];
                let last = done + count == running.reply.tokens().len();
                Chunk { table: &mut running.table, tokens, logits: usize::from(last) }
            })
            .collect();
        if chunks.is_empty() {
            return;
        }
        let logits = match model.forward(&mut chunks) {
            Ok(logits) => logits,
            Err(error) => {
                let why = error.to_string();
                running.iter_mut().for_each(|running| running.tell(Err(Error::fatal(why.clone()))));
                return;
            }
        };
        let mut rows = logits.rows();
        for (running, count) in running.iter_mut().zip(counts) {
            if *count == 0 || running.table.len() < running.reply.tokens().len() {
                continue;
            }
            let Some(logits) = rows.next() else { return };
            match running.reply.next(logits, scratch) {
                Ok((piece, finish)) => running.offer(piece, finish),
                Err(error) => running.tell(Err(error)),
            }
        }
    }

    /// How many tokens of each reply the next step runs: one of those that go on, then of prompts
    /// as they came.
    fn plan(&mut self) -> Vec<usize> {
        let mut room = STEP_TOKENS;
        let mut counts = vec![0; self.running.len()];
        for prompts in [false, true] {
            for (running, count) in self.running.iter_mut().zip(&mut counts) {
                let left = running.left();
                if left == 0 || (left > 1) != prompts {
                    continue;
                }
                let wanted = left.min(room);
                if !self.model.cache().reserve(&mut running.table, wanted) {
                    running.tell(Err(Error::retry("the memory for keys and values is in use")));
                    continue;
                }
                *count = wanted;
                room -= wanted;
            }
        }
        counts
    }
}
