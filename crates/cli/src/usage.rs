//! Errors of the command line.

use std::process::ExitCode;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure::note;

/// Exit code of a wrong command line.
const WRONG: u8 = 2;

/// Prints the error: one sentence for a command that does not exist, else clap's own text, which is
/// the help or the version if these were asked for.
pub(crate) fn report(error: &Error) -> ExitCode {
    if let Some(sentence) = unknown_command(error) {
        note(&format!("error: {sentence}"));
        return ExitCode::from(WRONG);
    }
    // A reader that is gone gets no help.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(WRONG) } else { ExitCode::SUCCESS }
}

/// Returns the sentence for a command that does not exist.
fn unknown_command(error: &Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let near = match error.get(ContextKind::SuggestedSubcommand) {
        // The last one is the most similar.
        Some(ContextValue::Strings(near)) => near.last(),
        _ => None,
    };
    let near = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    Some(format!("there is no command `{wrong}`: {near}`--help` lists the commands"))
}
