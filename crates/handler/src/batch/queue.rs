//! Queue of the requests that wait for the model's thread.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;
use tokio::sync::oneshot;

use super::{BatchLimits, Item};
use crate::emitter::Emitter;
use crate::error::{Error, Result};

/// Queue with at most one entry per call: a call that ends removes its request.
pub(super) struct Queue<I, O> {
    /// A panic under this lock leaves no partial state.
    state: Mutex<State<I, O>>,
    /// Notified when the thread has something to do.
    changed: Condvar,
}

struct State<I, O> {
    /// Waiting requests, the oldest first.
    waiting: VecDeque<Waiting<I, O>>,
    next: u64,
    warm_up: Option<Warm>,
    /// Reason why the model runs no more batches, once that is so.
    over: Option<String>,
}

type Warm = oneshot::Sender<Result<()>>;

/// Request that waits.
pub(super) struct Waiting<I, O> {
    number: u64,
    since: Instant,
    item: Item<I>,
    call: Call<O>,
}

/// Call that receives the result.
pub(super) struct Call<O> {
    emitter: Emitter<O>,
    done: oneshot::Sender<Result<O>>,
}

/// Next task of the thread.
pub(super) enum Work<I, O> {
    WarmUp(Warm),
    Batch(Vec<Item<I>>, Vec<Call<O>>),
    End,
}

/// Entry in the queue, removed when this is dropped.
pub(super) struct Place<'a, I, O> {
    queue: &'a Queue<I, O>,
    number: u64,
}

impl<O: Serialize> Call<O> {
    /// Returns true if the call needs no result anymore.
    pub(super) fn is_over(&self) -> bool {
        self.done.is_closed() || self.emitter.check().is_err()
    }

    pub(super) fn answer(self, result: Result<O>) {
        // The receiver is gone if the call was stopped in the meantime.
        let _ = self.done.send(result);
    }
}

impl<I, O: Serialize> Queue<I, O> {
    /// Adds a request.
    ///
    /// # Errors
    ///
    /// Returns an error if the model runs no more batches.
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

    /// Requests a warm-up.
    ///
    /// # Errors
    ///
    /// Returns an error if the model runs no more batches.
    pub(super) fn warm_up(&self, done: Warm) -> Result<()> {
        self.open()?.warm_up = Some(done);
        self.changed.notify_one();
        Ok(())
    }

    /// Closes the queue: waiting and later requests receive an error. The first reason stays.
    pub(super) fn end(&self, why: &str) {
        let mut state = self.state.lock();
        state.over.get_or_insert_with(|| why.to_owned());
        let left = (std::mem::take(&mut state.waiting), state.warm_up.take());
        drop(state);
        self.changed.notify_one();
        drop(left);
    }

    /// Returns the reason why the model runs no more batches, if it has stopped.
    pub(super) fn over(&self) -> Option<String> {
        self.state.lock().over.clone()
    }

    /// Returns that reason as the error of a call.
    pub(super) fn broken(&self) -> Error {
        Error::fatal(self.over().unwrap_or_else(|| "the model's thread has stopped".to_owned()))
    }

    /// Waits until a batch starts: it is full, or its oldest request has waited long enough.
    pub(super) fn next(&self, limits: BatchLimits) -> Work<I, O> {
        let mut state = self.state.lock();
        loop {
            if state.over.is_some() {
                return Work::End;
            }
            if let Some(done) = state.warm_up.take() {
                return Work::WarmUp(done);
            }
            // A stopped call removes its entry once it is polled. Until then the entry must not
            // count.
            state.waiting.retain(|waiting| !waiting.call.is_over());
            let waited = state.waiting.front().map(|oldest| oldest.since.elapsed());
            match waited.map(|waited| limits.max_batch_delay.saturating_sub(waited)) {
                None => self.changed.wait(&mut state),
                Some(left) if left.is_zero() || state.waiting.len() >= limits.batch_size => {
                    return state.take(limits.batch_size);
                }
                Some(left) => {
                    self.changed.wait_for(&mut state, left);
                }
            }
        }
    }

    fn open(&self) -> Result<MutexGuard<'_, State<I, O>>> {
        let state = self.state.lock();
        match &state.over {
            Some(why) => Err(Error::fatal(why.clone())),
            None => Ok(state),
        }
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
        let mut state = self.queue.state.lock();
        let found = state.waiting.iter().position(|waiting| waiting.number == self.number);
        let left = found.and_then(|at| state.waiting.remove(at));
        drop(state);
        drop(left);
    }
}

#[cfg(test)]
mod tests;
