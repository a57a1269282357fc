//! Untrusted text for a terminal, which interprets control characters.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes control characters and the marks that change the text direction. Newlines and tabs stay.
pub fn plain(text: &str) -> Cow<'_, str> {
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
