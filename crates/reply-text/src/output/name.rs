//! Names of functions.

/// Maximum length of a function's name, in bytes.
pub const LONGEST_NAME: usize = 64;

/// Returns true for the name of a function: 1 to 64 of `A-Z a-z 0-9 _ -`.
pub fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(is_name_char)
}

/// Returns true for a character that names of functions may have.
pub(super) fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}
