//! The requests that wait for the model's thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;
use tokio::sync::oneshot;

use super::{Item, Limits};
use crate::{Emitter, Error, Result};

/// It holds no more than there are calls: a call that ends takes its request along.
pub(super) struct Queue<I, O> {
    state: Mutex<State<I, O>>,
    /// Woken when there is something to do for the thread.
    changed: Condvar,
}

struct State<I, O> {
    /// The oldest first.
    waiting: VecDeque<Waiting<I, O>>,
    next: u64,
    warm_up: Option<Warm>,
    /// Why nothing is run any more.
    over: Option<String>,
}

type Warm = oneshot::Sender<Result<()>>;

/// A request that waits.
pub(super) struct Waiting<I, O> {
    number: u64,
    since: Instant,
    item: Item<I>,
    call: Call<O>,
}

/// The call that wants the answer.
pub(super) struct Call<O> {
    emitter: Emitter<O>,
    done: oneshot::Sender<Result<O>>,
}

/// What the thread is to do next.
pub(super) enum Work<I, O> {
    WarmUp(Warm),
    Batch(Vec<Item<I>>, Vec<Call<O>>),
    End,
}

/// A place in the queue, given up when this is dropped.
pub(super) struct Place<'a, I, O> {
    queue: &'a Queue<I, O>,
    number: u64,
}

impl<O: Serialize> Call<O> {
    /// Whether nobody wants the answer any more.
    pub(super) fn is_over(&self) -> bool {
        self.done.is_closed() || self.emitter.check().is_err()
    }

    pub(super) fn answer(self, result: Result<O>) {
        // A call that was stopped meanwhile does not wait for it.
        let _ = self.done.send(result);
    }
}

impl<I, O: Serialize> Queue<I, O> {
    /// Asks for an answer.
    ///
    /// # Errors
    ///
    /// Nothing is run any more.
    pub(super) fn join(
        &self,
        item: Item<I>,
        emitter: Emitter<O>,
        done: oneshot::Sender<Result<O>>,
    ) -> Result<Place<'_, I, O>> {
        let mut state = self.open()?;
        let number = state.next;
        state.next += 1;
        let call = Call { emitter, done };
        state.waiting.push_back(Waiting { number, since: Instant::now(), item, call });
        self.changed.notify_one();
        Ok(Place { queue: self, number })
    }

    /// Asks for the warm-up.
    ///
    /// # Errors
    ///
    /// Nothing is run any more.
    pub(super) fn warm_up(&self, done: Warm) -> Result<()> {
        self.open()?.warm_up = Some(done);
        self.changed.notify_one();
        Ok(())
    }

    /// Ends everything: who waits is told, and so is who comes later. The first reason stays.
    pub(super) fn end(&self, why: &str) {
        let mut state = self.state();
        state.over.get_or_insert_with(|| why.to_owned());
        let left = (std::mem::take(&mut state.waiting), state.warm_up.take());
        drop(state);
        self.changed.notify_one();
        drop(left);
    }

    /// Why nothing is run any more, if nothing is.
    pub(super) fn over(&self) -> Option<String> {
        self.state().over.clone()
    }

    /// The same, as what a call ends with.
    pub(super) fn broken(&self) -> Error {
        Error::fatal(self.over().unwrap_or_else(|| "the model's thread has stopped".to_owned()))
    }

    /// Waits until a batch is to begin: it is full, or its oldest request has waited long enough.
    pub(super) fn next(&self, limits: Limits) -> Work<I, O> {
        let mut state = self.state();
        loop {
            if state.over.is_some() {
                return Work::End;
            }
            if let Some(done) = state.warm_up.take() {
                return Work::WarmUp(done);
            }
            // A stopped call takes itself out once it is polled; it must not count until then.
            state.waiting.retain(|waiting| !waiting.call.is_over());
            let waited = state.waiting.front().map(|oldest| oldest.since.elapsed());
            state = match waited.map(|waited| limits.max_batch_delay.saturating_sub(waited)) {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() || state.waiting.len() >= limits.batch_size => {
                    return state.take(limits.batch_size);
                }
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn open(&self) -> Result<MutexGuard<'_, State<I, O>>> {
        let state = self.state();
        match &state.over {
            Some(why) => Err(Error::fatal(why.clone())),
            None => Ok(state),
        }
    }
}

impl<I, O> Queue<I, O> {
    fn state(&self) -> MutexGuard<'_, State<I, O>> {
        // Nothing is left half done by what may panic here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I, O> State<I, O> {
    fn take(&mut self, most: usize) -> Work<I, O> {
        let batch = self.waiting.drain(..most.min(self.waiting.len()));
        let (items, calls) = batch.map(|waiting| (waiting.item, waiting.call)).unzip();
        Work::Batch(items, calls)
    }
}

impl<I, O> Default for Queue<I, O> {
    fn default() -> Self {
        let state = State { waiting: VecDeque::new(), next: 0, warm_up: None, over: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<I, O> Drop for Place<'_, I, O> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let found = state.waiting.iter().position(|waiting| waiting.number == self.number);
        let left = found.and_then(|at| state.waiting.remove(at));
        drop(state);
        drop(left);
    }
}

#[cfg(test)]
mod tests;
