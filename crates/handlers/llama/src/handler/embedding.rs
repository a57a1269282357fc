//! Options that belong to one of the two tasks.

use crate::error::LoadError;
use crate::options::{Options, Task};

/// Refuses options of embeddings for a worker that generates text.
///
/// # Errors
///
/// Returns an error that names the first such option.
pub(super) fn check_generating(options: &Options) -> Result<(), LoadError> {
    if options.task == Some(Task::Embed) {
        return Err(LoadError::Worker(
            "the option task is embed, and this handler makes text: serve the model with `Embedder`"
                .to_owned(),
        ));
    }
    let given =
        [("pooling", options.pooling.is_some()), ("normalize", options.normalize.is_some())];
    refuse(&given, "needs task = \"embed\"")
}

/// Refuses options of generation that would have no effect on embeddings.
///
/// # Errors
///
/// Returns an error that names the first such option.
pub(super) fn check_embedding(options: &Options) -> Result<(), LoadError> {
    let given = [
        ("speculative_draft_model", options.speculative_draft_model.is_some()),
        ("speculative_ngram", options.speculative_ngram.is_some()),
        ("max_tokens", options.max_tokens.is_some()),
        ("parity_reference", options.parity_reference.is_some()),
    ];
    refuse(&given, "is not for task = \"embed\": remove it")
}

fn refuse(given: &[(&str, bool)], why: &str) -> Result<(), LoadError> {
    match given.iter().find(|(_, given)| *given) {
        Some((field, _)) => Err(LoadError::Worker(format!("the option {field} {why}"))),
        None => Ok(()),
    }
}
