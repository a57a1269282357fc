//! Messages on stderr and exit codes.

use std::io::Write as _;
use std::process::ExitCode;

use nsbridge_base::plain;

use crate::terminal::ReaderGone;

/// Exit code after Ctrl-C by the convention of shells: 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Exit code of a program whose reader left, by the same convention: 128 + SIGPIPE.
const READER_GONE: u8 = 141;

/// Prints the error and its causes as one sentence. A reader of stdout that left is no error: the
/// command ends without a word, as others do in `| head`.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(is_reader_gone) {
        return ExitCode::from(READER_GONE);
    }
    status(&format!("error: {}", nsbridge_base::chain(error.as_ref())));
    ExitCode::FAILURE
}

fn is_reader_gone(error: &(dyn std::error::Error + 'static)) -> bool {
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    inner.is_some_and(|inner| inner.is::<ReaderGone>())
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
