//! Output of the commands on stdout, with untrusted text escaped for a terminal, which interprets
//! control characters.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};

use nsbridge_base::plain;
use nsbridge_telemetry::LogWriter;

/// Error of a stdout whose reader is gone, as after `| head`.
#[derive(Debug)]
pub(crate) struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the output is gone")
    }
}

impl Error for ReaderGone {}

/// Writes text to stdout, escaped if stdout is a terminal.
///
/// All output of the commands on stdout goes through this function: it may quote a broker, a model
/// or a request.
///
/// # Errors
///
/// Returns the error of the write: [`ReaderGone`] if stdout is a pipe without a reader.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(shown(text).as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => io::Error::new(ErrorKind::BrokenPipe, ReaderGone),
        kind => io::Error::new(kind, format!("writing to standard output: {error}")),
    })
}

/// Writes a line to stdout as [`print`] does.
pub(crate) fn print_line(line: &str) -> io::Result<()> {
    print(&format!("{line}\n"))
}

/// Starts a writer of lines of JSON to stdout that does not wait for a reader. JSON has no control
/// characters.
pub(crate) fn json_lines() -> LogWriter {
    LogWriter::start(io::stdout())
}

/// Returns a number with what is counted, in the singular or in the plural.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Returns true if both stdin and stdout are a terminal.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Returns the text as stdout may show it: unchanged if that is a file or a pipe.
fn shown(text: &str) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() { plain(text) } else { Cow::Borrowed(text) }
}
