//! Quotation of untrusted text in messages.

use std::fmt::{self, Write};

/// Maximum number of characters that are shown.
const MAX_SHOWN_CHARS: usize = 400;

/// Formats untrusted text for a message or a terminal: on one line, without characters that a
/// terminal interprets or hides, and cut at 400 characters.
///
/// ```
/// assert_eq!(nsbridge_handler::quote("a\n\u{1b}[2Jb"), r"a\n\u{1b}[2Jb");
/// ```
pub fn quote(what: impl fmt::Display) -> String {
    let mut quoted = Quoted { text: String::new(), room: MAX_SHOWN_CHARS };
    // The error stops the formatting once the limit is reached.
    let _ = write!(quoted, "{what}");
    quoted.text
}

struct Quoted {
    text: String,
    room: usize,
}

impl Write for Quoted {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| self.write_char(c))
    }

    fn write_char(&mut self, c: char) -> fmt::Result {
        // Quotation marks are harmless, and parser messages contain many of them.
        let plain = matches!(c, '"' | '\'' | '\\');
        let escaped = c.escape_debug();
        let width = if plain { 1 } else { escaped.len() };
        let Some(room) = self.room.checked_sub(width) else {
            self.room = 0;
            self.text.push('…');
            return Err(fmt::Error);
        };
        self.room = room;
        match plain {
            true => self.text.push(c),
            false => self.text.extend(escaped),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_SHOWN_CHARS, quote};

    #[test]
    fn what_a_terminal_obeys_or_hides_is_escaped() {
        let quoted = quote("a\t\u{1b}[2J\u{7f}\u{9b}\u{202e}\u{200b}é『日本』 \"x\" c:\\d");
        assert_eq!(quoted, r#"a\t\u{1b}[2J\u{7f}\u{9b}\u{202e}\u{200b}é『日本』 "x" c:\d"#);
    }

    #[test]
    fn what_is_long_is_cut() {
        let all = "本".repeat(MAX_SHOWN_CHARS);
        assert_eq!(quote(&all), all);
        assert_eq!(quote(format!("{all}x")), format!("{all}…"));
        // The limit applies to the escaped text, not to the input.
        let escaped = quote("\u{202e}".repeat(MAX_SHOWN_CHARS));
        assert!(
            escaped.len() <= MAX_SHOWN_CHARS + '…'.len_utf8() && escaped.ends_with("}…"),
            "{escaped}"
        );
    }
}
