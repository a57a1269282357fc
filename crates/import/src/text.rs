//! Text of `worker.toml` and of reports: keys, values and comments.

use std::fmt::Write as _;

use toml::Value;

/// Width at which a comment is continued on the next line.
const WIDTH: usize = 100;

/// Returns a name as a key of TOML.
pub fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.chars().all(bare) {
        return name.to_owned();
    }
    quoted(name)
}

/// Returns a value on one line.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(plain).collect::<Vec<_>>().join(", "))
        }
        Value::Table(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Table(fields) => {
            let fields =
                fields.iter().map(|(name, value)| format!("{} = {}", key(name), plain(value)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Returns a string as TOML's basic string, on one line.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        let _ = match c {
            '"' | '\\' => write!(quoted, "\\{c}"),
            '\n' => write!(quoted, "\\n"),
            '\r' => write!(quoted, "\\r"),
            '\t' => write!(quoted, "\\t"),
            c if c.is_control() => write!(quoted, "\\u{:04x}", u32::from(c)),
            c => write!(quoted, "{c}"),
        };
    }
    quoted + "\""
}

/// Writes a comment in lines. Its control characters are escaped: a comment with a line break of its own
/// would end, and the rest of it would be configuration.
pub(crate) fn comment(text: &mut String, comment: &str) {
    let plain = one_line(comment);
    let mut line = String::from("#");
    for word in plain.split(' ') {
        if line.chars().count() + word.chars().count() >= WIDTH && line.len() > 1 {
            let _ = writeln!(text, "{line}");
            line = String::from("#");
        }
        let _ = write!(line, " {word}");
    }
    let _ = writeln!(text, "{line}");
}

/// Returns the text with its control characters escaped.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            let _ = write!(line, "{}", c.escape_unicode());
        } else {
            line.push(c);
        }
    }
    line
}
