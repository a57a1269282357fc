//! Check of a [`Batch`] for outputs that depend on the neighbors in the batch.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize as _;
use serde_json::Value;

use super::stage::info;
use super::{Breach, SEED};
use crate::batch::{Batch, Item};
use crate::error::Result;

/// Checks that a model answers each of `inputs` the same, to the bit, alone and in batches: with
/// each other input, before it and after it, and with all of them.
///
/// Pass about five inputs that differ in a property that may leak into a neighbor, such as their
/// length. One of them may be an input that the model refuses. [`check`](super::check) tests the
/// handler that [`Batched`](crate::Batched) makes of the model against the rest of the contract.
///
/// # Errors
///
/// Returns the first breach that was found.
pub fn check_batch<B: Batch>(model: &mut B, inputs: &[Value]) -> Result<(), Breach> {
    let alone = |model: &mut B| -> Result<Vec<_>, Breach> {
        let each = (0..inputs.len()).map(|at| answers(model, inputs, &[at]));
        Ok(each.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().flatten().collect())
    };
    let expected = alone(model)?;
    if expected.iter().all(Result::is_err) {
        return Err(Breach::Failed("the model answers none of the inputs".to_owned()));
    }
    let mut ran = false;
    for batch in batches(inputs.len()) {
        // The error of a whole batch belongs to no input: the worker would then run each input
        // alone.
        let Some(answers) = answers(model, inputs, &batch)? else { continue };
        ran |= batch.len() > 1;
        let mut both = batch.iter().zip(&answers);
        if let Some((&input, _)) = both.find(|(input, answer)| expected[**input] != **answer) {
            return Err(Breach::MindsNeighbours { input, size: batch.len() });
        }
    }
    if !ran {
        return Err(Breach::Failed("each batch of more than one fails as a whole".to_owned()));
    }
    if alone(model)? != expected {
        return Err(Breach::NotRepeatable(0));
    }
    Ok(())
}

/// Returns all ordered pairs, then all inputs, forwards and backwards.
fn batches(inputs: usize) -> Vec<Vec<usize>> {
    let pairs = (0..inputs).flat_map(|a| (0..inputs).map(move |b| vec![a, b]));
    let all: Vec<usize> = (0..inputs).collect();
    let backwards = all.iter().rev().copied().collect();
    pairs.chain([all, backwards]).collect()
}

/// JSON of an output, or the message of an error.
type Answer = Result<Vec<u8>, String>;

/// Returns the answers to one batch; `None` if a batch of more than one input fails as a whole.
fn answers<B: Batch>(
    model: &mut B,
    inputs: &[Value],
    batch: &[usize],
) -> Result<Option<Vec<Answer>>, Breach> {
    let item = |at: &usize| {
        let input = B::Input::deserialize(&inputs[*at]);
        let input = input.map_err(|error| Breach::Setup(format!("input {at}: {error}")))?;
        Ok(Item { input, info: info(*at, SEED + *at as u64) })
    };
    let items = batch.iter().map(item).collect::<Result<Vec<_>, _>>()?;
    let run = catch_unwind(AssertUnwindSafe(|| model.run(&items)));
    let results = match run.map_err(|_| Breach::Panicked)? {
        Ok(results) if results.len() == batch.len() => results,
        Ok(results) => {
            let (given, wanted) = (results.len(), batch.len());
            return Err(Breach::Failed(format!("it gave {given} results for {wanted} inputs")));
        }
        Err(error) if batch.len() == 1 => vec![Err(error)],
        Err(_) => return Ok(None),
    };
    let answer = |result: Result<B::Output>| match result {
        Ok(output) => {
            serde_json::to_vec(&output).map(Ok).map_err(|error| Breach::Failed(error.to_string()))
        }
        Err(error) => Ok(Err(error.to_string())),
    };
    results.into_iter().map(answer).collect::<Result<_, _>>().map(Some)
}
