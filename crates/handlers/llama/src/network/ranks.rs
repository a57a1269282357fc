//! Rank group of a model: rank 0 runs on the caller's thread, every other rank on its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::Config;
use crate::error::LoadError;
use crate::rope::RopeTable;
use crate::weights::Weights;
use nsbridge_kernels::collectives::{
    Communicator, Patience, RankGroup, RankHandle, RankLost, SingleRank,
};

#[cfg(feature = "candle")]
use super::device::DeviceShard;
use super::gpu::GpuShard;
use super::part::Part;
use super::plan::Step;
use super::rank::Rank;
use super::shard::Shard;
use super::{Backend, Setup};

/// Polling interval while waiting for the threads to end.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// All ranks of a model. Every step runs on each of them.
#[derive(Debug)]
pub(super) struct Ranks {
    first: Box<dyn Rank>,
    others: Others,
}

#[derive(Debug)]
struct Others {
    group: Arc<RankGroup>,
    steps: Vec<Sender<Arc<Step>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Ranks {
    pub(super) fn load(
        config: &Config,
        context: usize,
        weights: &Weights,
        setup: &Setup,
    ) -> Result<Self, LoadError> {
        match &setup.device {
            Backend::Cpu => {
                let comm = |part: Part, handle: RankHandle<Vec<f32>>| -> Box<dyn Communicator> {
                    if part.of == 1 { Box::new(SingleRank::new(handle)) } else { Box::new(handle) }
                };
                let rope = Arc::new(RopeTable::new(&config.rope, config.head_dim, context));
                Self::load_each(weights, setup, |part, handle| {
                    let place = (part, comm(part, handle));
                    Ok(Box::new(Shard::load(config, rope.clone(), weights, setup, place)?))
                })
            }
            Backend::Gpu(on) => {
                let rope = RopeTable::new(&config.rope, config.head_dim, context);
                Self::load_each(weights, setup, |part, handle| {
                    let place = (part, on, handle);
                    Ok(Box::new(GpuShard::load(config, &rope, context, weights, setup, place)?))
                })
            }
            #[cfg(not(feature = "candle"))]
            Backend::Candle(none) => match *none {},
            #[cfg(feature = "candle")]
            Backend::Candle(on) => Self::load_each(weights, setup, |part, handle| {
                let place = (part, on, handle);
                Ok(Box::new(DeviceShard::load(config, context, weights, setup, place)?))
            }),
        }
    }

    /// Loads all ranks in parallel, since a tensor is kept until each rank has taken its part. If
    /// one rank fails, the other ranks stop loading.
    fn load_each<T: Default + Send + Sync>(
        weights: &Weights,
        setup: &Setup,
        load: impl Fn(Part, RankHandle<T>) -> Result<Box<dyn Rank>, LoadError> + Sync,
    ) -> Result<Self, LoadError> {
        let of = setup.ranks;
        let group = Arc::new(RankGroup::new(of, setup.patience));
        let handles = group.handles();
        // Error of the rank that failed first. Later errors only follow from it.
        let why = Mutex::new(None);
        let load = |part, handle| {
            let _gives_up = GiveUpOnPanic(weights);
            load(part, handle).map_err(|error| {
                why.lock().get_or_insert(error);
                weights.give_up();
            })
        };
        let loaded: Vec<Result<_, ()>> = thread::scope(|scope| {
            let start = |(rank, handle)| {
                let thread = thread::Builder::new().name(name(rank));
                let load = &load;
                let load = move || load(Part { rank, of }, handle);
                thread.spawn_scoped(scope, load).map_err(|error| no_thread(&error))
            };
            let threads = handles.into_iter().enumerate().map(start);
            let threads =
                threads.collect::<Result<Vec<_>, _>>().inspect_err(|_| weights.give_up())?;
            let join = |thread: thread::ScopedJoinHandle<'_, Result<_, _>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            Ok::<_, LoadError>(threads.into_iter().map(join).collect())
        })?;
        if let Some(why) = why.into_inner() {
            return Err(why);
        }
        Self::start(loaded.into_iter().flatten().collect(), group)
    }

    fn start(shards: Vec<Box<dyn Rank>>, group: Arc<RankGroup>) -> Result<Self, LoadError> {
        let mut shards = shards.into_iter();
        let first = shards.next().ok_or_else(|| LoadError::Missing("no rank".to_owned()))?;
        let (mut steps, mut threads) = (Vec::new(), Vec::new());
        for (rank, shard) in (1..).zip(shards) {
            let (sender, receiver) = channel();
            let group = group.clone();
            let thread = thread::Builder::new().name(name(rank));
            let run = move || follow(shard, rank, &receiver, &group);
            threads.push(thread.spawn(run).map_err(|error| no_thread(&error))?);
            steps.push(sender);
        }
        Ok(Self { first, others: Others { group, steps, threads } })
    }

    pub(super) fn arithmetic(&self) -> String {
        self.first.arithmetic()
    }

    pub(super) fn watch(&self) -> Watch {
        Watch(self.others.group.clone())
    }

    /// Runs a step. Returns it with rank 0, which has its results.
    ///
    /// # Errors
    ///
    /// Returns an error if a rank is lost, in this step or an earlier one.
    pub(super) fn run(&mut self, step: Step) -> Result<(Arc<Step>, &dyn Rank), RankLost> {
        let step = Arc::new(step);
        // A rank whose thread has ended is noticed at the first rendezvous.
        self.others.steps.iter().for_each(|steps| drop(steps.send(step.clone())));
        let _ends = EndOnPanic(&self.others.group);
        self.first.run(&step)?;
        Ok((step, &*self.first))
    }
}

/// Progress and failure monitor of a model. It works from any thread, even while the thread that
/// runs the model hangs. A [`Drafter`](crate::Drafter::watch) provides it to the engine.
#[derive(Clone, Debug)]
pub struct Watch(Arc<RankGroup>);

impl Watch {
    #[cfg(test)]
    pub(crate) fn of(group: Arc<RankGroup>) -> Self {
        Self(group)
    }

    /// Returns the reason if the model can no longer run.
    pub(crate) fn lost(&self) -> Option<String> {
        self.0.check().err().map(|lost| lost.to_string())
    }

    pub(crate) fn ranks(&self) -> usize {
        self.0.ranks()
    }

    /// Returns the number of rendezvous that rank 0 has reached: two or more in a layer, or on a
    /// device one or more in a step.
    pub(crate) fn meetings(&self) -> u64 {
        self.0.arrivals(0)
    }

    /// Returns true if other ranks are in a step and no rank is lost.
    pub(crate) fn others_work(&self) -> bool {
        self.0.others_in_step() && self.0.check().is_ok()
    }
}

/// Runs the steps of a rank on its thread.
fn follow(mut shard: Box<dyn Rank>, rank: usize, steps: &Receiver<Arc<Step>>, group: &RankGroup) {
    for step in steps {
        // A lost rank needs no handling here: rank 0 gets the same error and reports it.
        let run = group.run_step(|| catch_unwind(AssertUnwindSafe(|| shard.run(&step))));
        if run.is_err() {
            group.report_lost(rank, "panicked");
        }
    }
}

/// On panic, ends the group, so that the other ranks do not wait for rank 0.
struct EndOnPanic<'a>(&'a RankGroup);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.report_lost(0, "panicked");
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
        let mut waiting = Patience::new(self.group.patience());
        while self.group.check().is_ok() && !waiting.is_over() {
            if self.threads.iter().all(JoinHandle::is_finished) {
                return self.threads.drain(..).for_each(|thread| drop(thread.join()));
            }
            thread::sleep(POLL_INTERVAL);
            waiting.poll();
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
