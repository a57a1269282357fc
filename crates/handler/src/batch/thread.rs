//! Thread that owns the model.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nsbridge_protocol::Fingerprint;
use serde::Serialize;
use tokio::sync::oneshot;

use super::queue::{Call, Queue, Work};
use super::{Batch, BatchLimits, BatchOptions, Item};
use crate::error::{Error, Result};
use crate::models::Models;

/// Properties of a model, known once it is loaded.
pub(super) struct Loaded {
    pub(super) limits: BatchLimits,
    pub(super) fingerprint: Option<Fingerprint>,
}

/// Starts the thread and loads the model on it.
///
/// # Errors
///
/// Returns an error if the operating system cannot start a thread.
pub(super) fn start<B: Batch>(
    options: BatchOptions<B::Options>,
    models: Models,
    queue: Arc<Queue<B::Input, B::Output>>,
    loaded: oneshot::Sender<Result<Loaded>>,
) -> Result<()> {
    let body = move || {
        let queue = Ending(&queue);
        let asked = options.limits();
        let mut model = match B::load(options.own, models) {
            Ok(model) => model,
            Err(error) => return drop(loaded.send(Err(error))),
        };
        let limits = match asked.over(model.limits()) {
            Ok(limits) => limits,
            Err(error) => return drop(loaded.send(Err(error))),
        };
        let fingerprint = model.fingerprint();
        if loaded.send(Ok(Loaded { limits, fingerprint })).is_ok() {
            serve(&mut model, queue.0, limits);
        }
    };
    std::thread::Builder::new().name("nsbridge-batch".into()).spawn(body).map_err(Error::fatal)?;
    Ok(())
}

/// Closes the queue however the thread ends, so that no call waits for a thread that is gone.
struct Ending<'a, I, O: Serialize>(&'a Queue<I, O>);

impl<I, O: Serialize> Drop for Ending<'_, I, O> {
    fn drop(&mut self) {
        self.0.end("the model's thread has stopped");
    }
}

fn serve<B: Batch>(model: &mut B, queue: &Queue<B::Input, B::Output>, limits: BatchLimits) {
    loop {
        match queue.next(limits) {
            Work::WarmUp(done) => {
                let warm = catch_unwind(AssertUnwindSafe(|| model.warm_up()));
                let Ok(warm) = warm else { return queue.end("the model panicked as it warmed up") };
                let _ = done.send(warm);
            }
            Work::Batch(items, calls) => {
                let (results, broken) = answer(model, &items, &calls);
                // Close the queue first, so that no request joins after a call has reported that
                // the model is broken.
                if let Some(why) = &broken {
                    queue.end(why);
                }
                calls.into_iter().zip(results).for_each(|(call, result)| call.answer(result));
            }
            Work::End => return,
        }
    }
}

/// Returns a result per item, and the reason if the model is broken. The reason never quotes an
/// error, because an error may quote what a user wrote.
fn answer<B: Batch>(
    model: &mut B,
    items: &[Item<B::Input>],
    calls: &[Call<B::Output>],
) -> (Vec<Result<B::Output>>, Option<String>) {
    let results = match run(model, items) {
        Ok(results) => Ok(results),
        Err(Fault::Error(error)) if items.len() == 1 => Ok(vec![Err(error)]),
        Err(Fault::Error(_)) => one_by_one(model, items, calls),
        Err(Fault::Broken(why)) => Err(why),
    };
    match results {
        Ok(results) => {
            let is_fatal = |result: &Result<B::Output>| matches!(result, Err(Error::Fatal(_)));
            let broken = results.iter().any(is_fatal);
            (results, broken.then(|| "the model says that it is broken".to_owned()))
        }
        Err(why) => (items.iter().map(|_| Err(Error::fatal(why.clone()))).collect(), Some(why)),
    }
}

/// Runs each item alone, so that an item does not fail because of another item of the batch.
fn one_by_one<B: Batch>(
    model: &mut B,
    items: &[Item<B::Input>],
    calls: &[Call<B::Output>],
) -> Result<Vec<Result<B::Output>>, String> {
    let mut results = Vec::new();
    for (item, call) in items.iter().zip(calls) {
        if call.is_over() {
            results.push(Err(Error::retry("its call has ended")));
            continue;
        }
        match run(model, std::slice::from_ref(item)) {
            Ok(alone) => results.extend(alone),
            Err(Fault::Error(error)) => results.push(Err(error)),
            Err(Fault::Broken(why)) => return Err(why),
        }
    }
    Ok(results)
}

/// Reason why a run gave no results.
enum Fault {
    /// The model returned this error.
    Error(Error),
    /// The model must not run again.
    Broken(String),
}

fn run<B: Batch>(model: &mut B, items: &[Item<B::Input>]) -> Result<Vec<Result<B::Output>>, Fault> {
    // A model that panicked does not run again, so its partial state is never read.
    match catch_unwind(AssertUnwindSafe(|| model.run(items))) {
        Ok(Ok(results)) if results.len() == items.len() => Ok(results),
        Ok(Ok(results)) => Err(Fault::Broken(format!(
            "the model gave {} results for a batch of {}: `run` must give one for each input",
            results.len(),
            items.len()
        ))),
        Ok(Err(Error::Fatal(_))) => {
            Err(Fault::Broken("the model says that it is broken".to_owned()))
        }
        Ok(Err(error)) => Err(Fault::Error(error)),
        Err(_) => Err(Fault::Broken("the model panicked while it ran a batch".to_owned())),
    }
}
