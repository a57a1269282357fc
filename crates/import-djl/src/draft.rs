//! `worker.toml` in the making: fields with comments that say where each value comes from.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use toml::Value;

/// Width at which a comment is continued on the next line.
const WIDTH: usize = 100;

/// Sections in their order in the file.
const SECTIONS: [&str; 7] =
    ["worker", "broker", "keys", "models", "store", "handler", "handler.options"];

/// Value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Written {
    Plain(Value),
    /// Path of a folder or file.
    Path(PathBuf),
    /// Address with a scheme that no worker knows, so that the worker does not start until a person has
    /// replaced it.
    Placeholder(String),
}

#[derive(Debug)]
struct Field {
    section: &'static str,
    name: String,
    value: Written,
    comments: Vec<String>,
}

/// Configuration of a worker in the making.
#[derive(Debug, Default)]
pub(super) struct Draft {
    fields: Vec<Field>,
    /// Comments at the end of a section, such as fields that a person may want.
    hints: Vec<(&'static str, String)>,
    /// Comments at the end of the file.
    end: Vec<String>,
}

impl Draft {
    /// Sets a field, unless it has another value already. Returns the origin of that value then.
    pub(super) fn set(
        &mut self,
        section: &'static str,
        name: &str,
        value: Written,
        comment: impl Into<String>,
    ) -> Result<(), String> {
        let known =
            self.fields.iter_mut().find(|field| field.section == section && field.name == name);
        let Some(known) = known else {
            let comments = vec![comment.into()];
            self.fields.push(Field { section, name: name.to_owned(), value, comments });
            return Ok(());
        };
        if known.value != value {
            return Err(known.comments[0].clone());
        }
        known.comments.push(comment.into());
        Ok(())
    }

    pub(super) fn has(&self, section: &str, name: &str) -> bool {
        self.fields.iter().any(|field| field.section == section && field.name == name)
    }

    /// Adds a comment above a field.
    pub(super) fn explain(&mut self, section: &str, name: &str, comment: impl Into<String>) {
        let mut fields = self.fields.iter_mut();
        if let Some(field) = fields.find(|field| field.section == section && field.name == name) {
            field.comments.push(comment.into());
        }
    }

    pub(super) fn hint(&mut self, section: &'static str, hint: impl Into<String>) {
        let hint = (section, hint.into());
        if !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
    }

    pub(super) fn end(&mut self, comment: impl Into<String>) {
        self.end.push(comment.into());
    }

    /// Returns the file. Paths below `folder` are written relative to it.
    pub(super) fn text(&self, folder: &Path) -> String {
        self.written(|value| match value {
            Written::Plain(value) => plain(value),
            Written::Path(path) => {
                let within = path.strip_prefix(folder).unwrap_or(path);
                let within = if within.as_os_str().is_empty() { Path::new(".") } else { within };
                quoted(&within.to_string_lossy())
            }
            Written::Placeholder(address) => quoted(address),
        })
    }

    /// Returns the file with absolute paths, and with `there` for places that are not on this machine.
    pub(super) fn text_to_check(&self, there: &Path) -> String {
        self.written(|value| match value {
            Written::Plain(value) => plain(value),
            Written::Path(path) if path.exists() => quoted(&path.to_string_lossy()),
            Written::Path(_) | Written::Placeholder(_) => quoted(&there.to_string_lossy()),
        })
    }

    fn written(&self, show: impl Fn(&Written) -> String) -> String {
        let mut text = String::new();
        comment(
            &mut text,
            "Made by `nsbridge import-djl`. The comment above a field names the option of DJLServing that it comes from.",
        );
        for section in SECTIONS {
            let fields: Vec<_> =
                self.fields.iter().filter(|field| field.section == section).collect();
            let hints: Vec<_> = self.hints.iter().filter(|(of, _)| *of == section).collect();
            if fields.is_empty() && hints.is_empty() {
                continue;
            }
            let _ = writeln!(text, "\n[{section}]");
            for Field { name, value, comments, .. } in fields {
                comments.iter().for_each(|line| comment(&mut text, line));
                let _ = writeln!(text, "{} = {}", key(name), show(value));
            }
            hints.iter().for_each(|(_, hint)| comment(&mut text, hint));
        }
        if !self.end.is_empty() {
            text.push('\n');
            self.end.iter().for_each(|line| comment(&mut text, line));
        }
        text
    }
}

/// Returns a name as a key of TOML.
fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.chars().all(bare) {
        return name.to_owned();
    }
    quoted(name)
}

/// Returns a value on one line.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), quoted)
}

/// Returns a string as TOML's basic string, on one line.
fn quoted(text: &str) -> String {
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
fn comment(text: &mut String, comment: &str) {
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
pub(super) fn one_line(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use toml::Value;

    use super::{Draft, Written};

    #[test]
    fn a_line_break_in_an_option_ends_no_comment_and_no_value() {
        let mut draft = Draft::default();
        let value = Written::Plain(Value::String("a\n[broker]\nurl = 1\u{7f}\"'''\\".to_owned()));
        draft.set("handler.options", "k\n\"=\u{1}\\", value, "x\r\n[keys]\u{85}\u{2028}").unwrap();
        draft.hint("handler", "y\nz = 1");
        draft.end("z\n[worker]");
        let table: toml::Table = draft.text(Path::new("/")).parse().unwrap();
        assert_eq!(table.keys().collect::<Vec<_>>(), ["handler"]);
        let options = table["handler"]["options"].as_table().unwrap();
        assert_eq!(options["k\n\"=\u{1}\\"].as_str(), Some("a\n[broker]\nurl = 1\u{7f}\"'''\\"));
    }

    #[test]
    fn a_field_keeps_its_first_value_and_names_its_origin() {
        let mut draft = Draft::default();
        let four = || Written::Plain(Value::Integer(4));
        assert_eq!(draft.set("handler", "threads", four(), "a"), Ok(()));
        assert_eq!(draft.set("handler", "threads", four(), "b"), Ok(()));
        let five = Written::Plain(Value::Integer(5));
        assert_eq!(draft.set("handler", "threads", five, "c"), Err("a".to_owned()));
        assert!(draft.text(Path::new("/")).ends_with("[handler]\n# a\n# b\nthreads = 4\n"));
    }

    #[test]
    fn paths_are_relative_to_the_folder_of_the_file() {
        let mut draft = Draft::default();
        let mut set = |name, path: &str| {
            draft.set("models", name, Written::Path(path.into()), "").unwrap();
        };
        set("a", "/w/m/x");
        set("b", "/w/m");
        set("c", "/v/x");
        let table: toml::Table = draft.text(Path::new("/w/m")).parse().unwrap();
        let path = |name: &str| table["models"][name].as_str().unwrap().to_owned();
        assert_eq!([path("a"), path("b"), path("c")], ["x", ".", "/v/x"]);
    }
}
