//! Rank group of a model: rank 0 runs on the caller's thread, every other rank on its own.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::comm::{Comm, Lost, Meeting, Member, Single, Waiting};
use crate::{Config, LoadError, RopeTable, Weights};

use super::device::DeviceShard;
use super::load::Part;
use super::plan::Step;
use super::shard::Shard;
use super::{Processor, Setup};

/// Polling interval while waiting for the threads to end.
const LOOK: Duration = Duration::from_micros(100);

/// One rank of a model, on any processor.
pub(super) trait Rank: fmt::Debug + Send {
    /// Runs a step. Rank 0 has the [`logits`](Self::logits) afterwards.
    fn run(&mut self, step: &Step) -> Result<(), Lost>;

    /// Returns the logits requested by the last step, of all ranks.
    fn logits(&self, step: &Step) -> Rows<'_>;

    /// Returns a description of what determines the bits besides the model files.
    fn arithmetic(&self) -> String;
}

/// All ranks of a model. Every step runs on each of them.
#[derive(Debug)]
pub(super) struct Ranks {
    first: Box<dyn Rank>,
    others: Others,
}

#[derive(Debug)]
struct Others {
    meeting: Arc<Meeting>,
    steps: Vec<Sender<Arc<Step>>>,
    threads: Vec<JoinHandle<()>>,
}

/// Rows of numbers, `stride` apart.
pub(super) struct Rows<'a> {
    pub(super) numbers: &'a [f32],
    pub(super) stride: usize,
}

impl Ranks {
    pub(super) fn load(
        config: &Config,
        context: usize,
        weights: &Weights,
        setup: &Setup,
    ) -> Result<Self, LoadError> {
        match &setup.device {
            Processor::Cpu => {
                let comm = |part: Part, member: Member<Vec<f32>>| -> Box<dyn Comm> {
                    if part.of == 1 { Box::new(Single(member)) } else { Box::new(member) }
                };
                let rope = Arc::new(RopeTable::new(&config.rope, config.head_dim, context));
                Self::load_each(weights, setup, |part, member| {
                    let place = (part, comm(part, member));
                    Ok(Box::new(Shard::load(config, rope.clone(), weights, setup, place)?))
                })
            }
            Processor::Candle(on) => Self::load_each(weights, setup, |part, member| {
                let place = (part, on, member);
                Ok(Box::new(DeviceShard::load(config, context, weights, setup, place)?))
            }),
        }
    }

    /// Loads all ranks in parallel, since a tensor is kept until each rank has taken its part. If
    /// one rank fails, the other ranks stop loading.
    fn load_each<T: Default + Send + Sync>(
        weights: &Weights,
        setup: &Setup,
        load: impl Fn(Part, Member<T>) -> Result<Box<dyn Rank>, LoadError> + Sync,
    ) -> Result<Self, LoadError> {
        let of = setup.ranks;
        let meeting = Arc::new(Meeting::new(of, setup.patience));
        let members = meeting.members();
        // Error of the rank that failed first. Later errors only follow from it.
        let why = Mutex::new(None);
        let load = |part, member| {
            let _gives_up = GiveUpOnPanic(weights);
            load(part, member).map_err(|error| {
                why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                weights.give_up();
            })
        };
        let loaded: Vec<Result<_, ()>> = thread::scope(|scope| {
            let start = |(rank, member)| {
                let thread = thread::Builder::new().name(name(rank));
                let load = &load;
                let load = move || load(Part { rank, of }, member);
                thread.spawn_scoped(scope, load).map_err(|error| no_thread(&error))
            };
            let threads = members.into_iter().enumerate().map(start);
            let threads =
                threads.collect::<Result<Vec<_>, _>>().inspect_err(|_| weights.give_up())?;
            let join = |thread: thread::ScopedJoinHandle<'_, Result<_, _>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            Ok::<_, LoadError>(threads.into_iter().map(join).collect())
        })?;
        if let Some(why) = why.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(why);
        }
        Self::start(loaded.into_iter().flatten().collect(), meeting)
    }

    fn start(shards: Vec<Box<dyn Rank>>, meeting: Arc<Meeting>) -> Result<Self, LoadError> {
        let mut shards = shards.into_iter();
        let first = shards.next().ok_or_else(|| LoadError::Missing("no rank".to_owned()))?;
        let (mut steps, mut threads) = (Vec::new(), Vec::new());
        for (rank, shard) in (1..).zip(shards) {
            let (sender, receiver) = channel();
            let meeting = meeting.clone();
            let thread = thread::Builder::new().name(name(rank));
            let run = move || follow(shard, rank, &receiver, &meeting);
            threads.push(thread.spawn(run).map_err(|error| no_thread(&error))?);
            steps.push(sender);
        }
        Ok(Self { first, others: Others { meeting, steps, threads } })
    }

    pub(super) fn arithmetic(&self) -> String {
        self.first.arithmetic()
    }

    pub(super) fn watch(&self) -> Watch {
        Watch(self.others.meeting.clone())
    }

    /// Runs a step and returns the requested logits.
    ///
    /// # Errors
    ///
    /// Returns an error if a rank is lost, in this step or an earlier one.
    pub(super) fn run(&mut self, step: Step) -> Result<Rows<'_>, Lost> {
        let step = Arc::new(step);
        // A rank whose thread has ended is noticed at the first rendezvous.
        self.others.steps.iter().for_each(|steps| drop(steps.send(step.clone())));
        let _ends = EndOnPanic(&self.others.meeting);
        self.first.run(&step)?;
        Ok(self.first.logits(&step))
    }
}

/// Progress and failure monitor of a model. It works from any thread, even while the thread that
/// runs the model hangs. A [`Drafter`](crate::Drafter::watch) provides it to the engine.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Meeting>);

impl Watch {
    #[cfg(test)]
    pub(crate) fn of(meeting: Arc<Meeting>) -> Self {
        Self(meeting)
    }

    /// Returns the reason if the model can no longer run.
    pub(crate) fn lost(&self) -> Option<String> {
        self.0.is_over().err().map(|lost| lost.to_string())
    }

    pub(crate) fn ranks(&self) -> usize {
        self.0.ranks()
    }

    /// Returns the number of rendezvous that rank 0 has reached: two or more in a layer, or on a
    /// device one or more in a step.
    pub(crate) fn meetings(&self) -> u64 {
        self.0.come(0)
    }

    /// Returns true if other ranks are in a step and no rank is lost.
    pub(crate) fn others_work(&self) -> bool {
        self.0.others_work() && self.0.is_over().is_ok()
    }
}

/// Runs the steps of a rank on its thread.
fn follow(mut shard: Box<dyn Rank>, rank: usize, steps: &Receiver<Arc<Step>>, meeting: &Meeting) {
    for step in steps {
        // A lost rank needs no handling here: rank 0 gets the same error and reports it.
        let run = meeting.work(|| catch_unwind(AssertUnwindSafe(|| shard.run(&step))));
        if run.is_err() {
            meeting.end(rank, "panicked");
        }
    }
}

/// On panic, ends the group, so that the other ranks do not wait for rank 0.
struct EndOnPanic<'a>(&'a Meeting);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.end(0, "panicked");
        }
    }
}

/// On panic, stops the other ranks from loading on.
struct GiveUpOnPanic<'a>(&'a Weights);

impl Drop for GiveUpOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.give_up();
        }
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        self.steps.clear();
        // A thread that hangs cannot be joined. It owns everything that it uses, so it is left
        // behind.
        let mut waiting = Waiting::new(self.meeting.patience());
        while self.meeting.is_over().is_ok() && !waiting.is_long() {
            if self.threads.iter().all(JoinHandle::is_finished) {
                return self.threads.drain(..).for_each(|thread| drop(thread.join()));
            }
            thread::sleep(LOOK);
            waiting.look();
        }
    }
}

fn name(rank: usize) -> String {
    format!("nsbridge-rank-{rank}")
}

fn no_thread(error: &std::io::Error) -> LoadError {
    LoadError::Read(format!("no thread for a rank: {error}"))
}

#[cfg(test)]
mod tests;
