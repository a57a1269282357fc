//! Characters as the rules compare them.

/// Returns the characters of a text in the form in which the rules compare them, one for each.
pub(super) fn characters(text: &str) -> Vec<char> {
    text.chars().map(fold).collect()
}

/// Returns the form of a character: lower case, full-width forms as ASCII, dashes as `-`, white space
/// as a space.
fn fold(character: char) -> char {
    let plain = match character {
        // Full-width forms of `!` to `~`.
        '\u{ff01}'..='\u{ff5e}' => {
            char::from_u32(u32::from(character) - 0xff01 + 0x21).unwrap_or(character)
        }
        '\u{2010}'..='\u{2015}' | '\u{2212}' | '\u{fe63}' | '\u{ff70}' => '-',
        '\u{2018}' | '\u{2019}' => '\'',
        other if other.is_whitespace() => ' ',
        other => other,
    };
    let mut lower = plain.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(lower), None) => lower,
        _ => plain,
    }
}

/// Returns true for a character that may be between two digits of a number.
pub(super) fn is_separator(character: char) -> bool {
    // Japanese writers also use the sign of a long vowel as a dash.
    matches!(character, ' ' | '-' | '.' | 'ー')
}

/// Returns true for a character that may be a part of a card or telephone number.
pub(super) fn is_of_number(character: char) -> bool {
    character.is_ascii_digit() || is_separator(character) || matches!(character, '+' | '(' | ')')
}

/// Returns true if a number may begin at `at`: no letter and no digit is before it.
pub(super) fn begins_number(text: &[char], at: usize) -> bool {
    at.checked_sub(1).is_none_or(|before| !text[before].is_ascii_alphanumeric())
}

/// Returns true if a number may end before `at`: no letter and no digit follows.
pub(super) fn ends_number(text: &[char], at: usize) -> bool {
    text.get(at).is_none_or(|next| !next.is_ascii_alphanumeric())
}
