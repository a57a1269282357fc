//! How a command ends that did not do its work.

use std::io::Write as _;
use std::process::ExitCode;

use crate::terminal::plain;

/// After Ctrl-C, as shells expect: 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Prints the one sentence and its causes.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    note(&format!("error: {}", nsbridge::chain(error.as_ref())));
    ExitCode::FAILURE
}

/// Writes a line for the person at the terminal, if there is one. It may quote others.
pub(crate) fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", plain(line));
}
