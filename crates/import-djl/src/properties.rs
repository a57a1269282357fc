//! Parser of Java's `.properties` format, by the rules of `java.util.Properties.load`.
//!
//! Java reads the bytes as ISO 8859-1. Files that are UTF-8 are common, so a file that is valid UTF-8
//! is read as that.

use anyhow::{Context as _, Result, bail, ensure};

/// Maximum size of a file, in bytes.
const MAX_FILE_BYTES: usize = 1 << 20;

/// Property of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Property {
    pub(super) name: String,
    pub(super) value: String,
    /// Number of the line on which the property begins, from 1.
    pub(super) line: usize,
}

/// Decodes the bytes of a file.
///
/// # Errors
///
/// Returns an error if the bytes are not text.
pub(super) fn decode(bytes: &[u8]) -> Result<String> {
    ensure!(
        bytes.len() <= MAX_FILE_BYTES,
        "it has {} bytes, more than {MAX_FILE_BYTES}",
        bytes.len()
    );
    let is_text = |byte: &u8| *byte >= b' ' || b"\t\n\r\x0c".contains(byte);
    if let Some(at) = bytes.iter().position(|byte| !is_text(byte)) {
        bail!("it is not a text file: byte {at} is {:#04x}", bytes[at]);
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.trim_start_matches('\u{feff}').to_owned(),
        Err(_) => bytes.iter().map(|byte| char::from(*byte)).collect(),
    };
    Ok(text)
}

/// Parses the properties of a file in their order. A name may occur more than once; Java keeps the
/// last value.
///
/// # Errors
///
/// Returns an error that names the line of an escape `\u` without four hexadecimal digits, for which
/// Java throws an exception, or of half a surrogate pair.
pub(super) fn parse(text: &str) -> Result<Vec<Property>> {
    let mut lines = Lines { rest: text.chars().peekable(), number: 1 };
    let mut properties = Vec::new();
    while let Some((line, logical)) = lines.next_logical() {
        let (name, value) = split(&logical);
        let unescaped = || anyhow::Ok((unescape(name)?, unescape(value)?));
        let (name, value) = unescaped().with_context(|| format!("line {line}"))?;
        properties.push(Property { name, value, line });
    }
    Ok(properties)
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

fn is_end(c: char) -> bool {
    matches!(c, '\n' | '\r')
}

struct Lines<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    /// Number of the line that the next character is on.
    number: usize,
}

impl Lines<'_> {
    /// Returns the next character and the number of its line.
    fn next(&mut self) -> Option<(char, usize)> {
        let (c, number) = (self.rest.next()?, self.number);
        if c == '\n' || c == '\r' && self.rest.peek() != Some(&'\n') {
            self.number += 1;
        }
        Some((c, number))
    }

    /// Returns the next logical line without its comments and continuations, and the number of the
    /// line on which it begins. The states are those of Java's `LineReader`.
    fn next_logical(&mut self) -> Option<(usize, Vec<char>)> {
        let (mut line, mut begins) = (Vec::new(), 0);
        let (mut skips, mut continues, mut escaped) = (true, false, false);
        while let Some((c, number)) = self.next() {
            if skips {
                if is_space(c) || !continues && is_end(c) {
                    continue;
                }
                (skips, continues) = (false, false);
            }
            if line.is_empty() && matches!(c, '#' | '!') {
                while self.next().is_some_and(|(c, _)| !is_end(c)) {}
                skips = true;
            } else if !is_end(c) {
                if line.is_empty() {
                    begins = number;
                }
                line.push(c);
                escaped = c == '\\' && !escaped;
            } else if line.is_empty() {
                skips = true;
            } else if escaped {
                line.pop();
                if self.rest.peek().is_none() {
                    return Some((begins, line));
                }
                (skips, continues, escaped) = (true, true, false);
                if c == '\r' && self.rest.peek() == Some(&'\n') {
                    self.next();
                }
            } else {
                return Some((begins, line));
            }
        }
        if line.is_empty() {
            return None;
        }
        if escaped {
            line.pop();
        }
        Some((begins, line))
    }
}

/// Splits a logical line into name and value, at `=`, `:` or white space.
fn split(line: &[char]) -> (&[char], &[char]) {
    let mut escaped = false;
    let ends = |c: &char| {
        let ends = !escaped && (matches!(c, '=' | ':') || is_space(*c));
        escaped = *c == '\\' && !escaped;
        ends
    };
    let at = line.iter().position(ends).unwrap_or(line.len());
    let (name, mut value) = line.split_at(at);
    let mut separated = false;
    while let [c, rest @ ..] = value {
        let separates = matches!(c, '=' | ':') && !separated;
        if !separates && !is_space(*c) {
            break;
        }
        separated |= separates;
        value = rest;
    }
    (name, value)
}

fn unescape(escaped: &[char]) -> Result<String> {
    let mut text = String::with_capacity(escaped.len());
    let mut high = None;
    let mut rest = escaped.iter();
    while let Some(c) = rest.next() {
        let plain = match c {
            '\\' => match rest.next() {
                Some('u') => {
                    let unit = unit(rest.as_slice())?;
                    rest = rest.as_slice()[4..].iter();
                    push(&mut text, &mut high, unit)?;
                    continue;
                }
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some(other) => *other,
                None => continue,
            },
            plain => *plain,
        };
        ensure!(high.is_none(), HALF);
        text.push(plain);
    }
    ensure!(high.is_none(), HALF);
    Ok(text)
}

const HALF: &str = "an escape \\u is half of a surrogate pair";

/// Reads the four digits of an escape.
fn unit(digits: &[char]) -> Result<u16> {
    let digits: String = digits.iter().take(4).collect();
    let is_hex = digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    ensure!(is_hex, "an escape \\u needs four hexadecimal digits");
    Ok(u16::from_str_radix(&digits, 16)?)
}

/// Adds a unit of UTF-16, or keeps it until its pair is complete.
fn push(text: &mut String, high: &mut Option<u16>, unit: u16) -> Result<()> {
    let units = [high.unwrap_or(unit), unit];
    let units = if high.take().is_some() { &units[..] } else { &units[1..] };
    match String::from_utf16(units) {
        Ok(whole) => text.push_str(&whole),
        Err(_) if units.len() == 1 && (0xd800..0xdc00).contains(&unit) => *high = Some(unit),
        Err(_) => bail!(HALF),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
