//! Output of the commands on stdout, with untrusted text escaped for a terminal, which interprets
//! control characters.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

/// Writes text to stdout, escaped if stdout is a terminal.
///
/// All output of the commands on stdout goes through this function: it may quote a broker, a model
/// or a request.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(shown(text).as_bytes())?;
    out.flush()
}

/// Writes a line to stdout as [`print`] does.
pub(crate) fn print_line(line: &str) -> io::Result<()> {
    print(&format!("{line}\n"))
}

/// Returns true if both stdin and stdout are a terminal.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Returns the text as stdout may show it: unchanged if that is a file or a pipe.
fn shown(text: &str) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() { plain(text) } else { Cow::Borrowed(text) }
}

/// Escapes control characters and the marks that change the text direction. Newlines and tabs stay.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) {
            // Writing to a `String` cannot fail.
            let _ = write!(plain, "{}", c.escape_unicode());
        } else {
            plain.push(c);
        }
    }
    Cow::Owned(plain)
}

fn acts(c: char) -> bool {
    let turns = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    turns || (c.is_control() && !matches!(c, '\n' | '\t'))
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn l6_a_terminal_gets_no_control_characters() {
        for same in ["", "a\tb\nc", "Es war einmal, むかし 👩‍👩‍👧"] {
            assert_eq!(plain(same), same);
        }
        for (text, shown) in [
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("a\rb\u{7f}\u{7}", "a\\u{d}b\\u{7f}\\u{7}"),
            ("\u{202e}cod.exe\u{2069}", "\\u{202e}cod.exe\\u{2069}"),
        ] {
            assert_eq!(plain(text), shown);
        }
    }
}
