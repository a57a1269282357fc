//! Decisions of a log, made again.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::io::BufRead;

use anyhow::{Context as _, Result};
use nsbridge_scaling::policy::{Decision, Policy};

use crate::config::Config;
use crate::decision_log::Entry;

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// Number of decisions.
    pub decisions: u64,
    /// Decisions that differ from the log, as one sentence each.
    pub differences: Vec<String>,
}

/// Makes the decisions of a scaler's log again, under the policies of a configuration.
///
/// Empty lines count as none. A log that begins in the middle of a leadership may differ in its first
/// decisions, since the policy's memory of what was before is missing.
///
/// # Errors
///
/// Returns an error with the first line that is none of such a log, or whose model is not configured.
pub fn replay(lines: impl BufRead, config: &Config) -> Result<Replayed> {
    let mut policies = HashMap::new();
    let mut replayed = Replayed { decisions: 0, differences: Vec::new() };
    for (number, line) in (1..).zip(lines.lines()) {
        let line = line.with_context(|| format!("cannot read line {number} as text"))?;
        if line.trim().is_empty() {
            continue;
        }
        let entry: Entry = serde_json::from_str(&line)
            .with_context(|| format!("line {number} is no decision of a scaler"))?;
        let Entry { model, run, observation, decision, .. } = entry;
        let options = config.models.get(&model);
        let options = options.with_context(|| {
            format!("line {number} is about the model `{model}`, which the configuration has not")
        })?;
        let policy = match policies.entry((model.clone(), run)) {
            Place::Occupied(known) => known.into_mut(),
            Place::Vacant(place) => place.insert(Policy::new(options.policy.clone())?),
        };
        let again = as_logged(&policy.decide(&observation))?;
        replayed.decisions += 1;
        if again != decision {
            let said = format!("line {number}, `{model}`: {decision}; replayed: {again}");
            replayed.differences.push(said);
        }
    }
    Ok(replayed)
}

/// Returns a decision as it is read from a log: the text of a number may lose its last bit.
fn as_logged(decision: &Decision) -> Result<Decision> {
    Ok(serde_json::from_str(&serde_json::to_string(decision)?)?)
}
