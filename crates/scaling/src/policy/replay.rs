//! Decisions of a log of observations.

use std::io::BufRead;

use super::{Decision, Observation, Options, Policy};
use crate::error::Error;

/// Form of a line.
const LINE_FORM: &str =
    "an observation as JSON, such as {\"at_s\":15,\"ready_interactive\":3,\"running\":2}";

/// Decides on each observation of a log: JSON lines, as serde writes an [`Observation`].
///
/// Empty lines count as none.
///
/// # Errors
///
/// Returns an error if an option cannot be used, or for the first line that cannot be read.
pub fn replay(
    lines: impl BufRead,
    options: Options,
) -> Result<Vec<(Observation, Decision)>, Error> {
    let mut policy = Policy::new(options)?;
    let mut decisions = Vec::new();
    for (number, text) in (1..).zip(lines.lines()) {
        let text = text.map_err(|source| Error::Read { line: number, source })?;
        if text.trim().is_empty() {
            continue;
        }
        let observation: Observation = serde_json::from_str(&text).map_err(|error| {
            Error::Line { line: number, problem: error.to_string(), expected: LINE_FORM }
        })?;
        let decision = policy.decide(&observation);
        decisions.push((observation, decision));
    }
    Ok(decisions)
}
