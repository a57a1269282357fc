//! Messages on stderr and exit codes.

use std::io::Write as _;
use std::process::ExitCode;

use nsbridge_base::plain;

/// Exit code after Ctrl-C by the convention of shells: 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Prints the error and its causes as one sentence.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    status(&format!("error: {}", nsbridge_base::chain(error.as_ref())));
    ExitCode::FAILURE
}

/// Writes a line to stderr through the log, which never blocks. For commands that serve: stderr may be
/// a pipe that is not read. Control characters are escaped.
pub(crate) fn status(line: &str) {
    // One call, because the log takes or drops whole lines.
    let _ = nsbridge::stderr_log().write_all(format!("{}\n", plain(line)).as_bytes());
}

/// Writes a line to stderr. Control characters are escaped, since the line may quote untrusted
/// text.
pub(crate) fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", plain(line));
}
