//! `worker.toml` in the making: fields with comments that say where each value comes from.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use toml::Value;

use crate::report::Fate;
use crate::text::{comment, key, plain, quoted};

/// Sections in their order in the file.
const SECTIONS: [&str; 7] =
    ["worker", "broker", "keys", "models", "store", "handler", "handler.options"];

/// Value of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// Value as it is.
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
#[derive(Debug)]
pub struct Draft {
    /// Comment at the beginning of the file.
    head: &'static str,
    fields: Vec<Field>,
    /// Comments at the end of a section, such as fields that a person may want.
    hints: Vec<(&'static str, String)>,
    /// Comments at the end of the file.
    end: Vec<String>,
}

impl Draft {
    /// Creates an empty configuration with a comment at its beginning.
    pub fn new(head: &'static str) -> Self {
        Self { head, fields: Vec::new(), hints: Vec::new(), end: Vec::new() }
    }

    /// Sets a field, unless it has another value already.
    ///
    /// # Errors
    ///
    /// Returns the origin of the other value.
    pub fn set(
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

    /// Sets a field to a text, unless it has a value already.
    pub fn set_text(&mut self, section: &'static str, name: &str, value: &str, comment: &str) {
        // The earlier value stays.
        let _ = self.set(section, name, Written::Plain(Value::String(value.to_owned())), comment);
    }

    /// Sets broker and keys, for which an input has no options.
    pub fn set_broker_and_keys(&mut self, input: &str) {
        let broker = format!("{input} has no broker. NSBRIDGE_BROKER__URL overrides it");
        self.set_text("broker", "url", "amqp://localhost", &broker);
        let keys = format!(
            "{input} has no keys: `nsbridge keys generate --out keys.json` beside this file"
        );
        self.set_text("keys", "keyring", "keys.json", &keys);
    }

    /// Sets a field to the value of an option, and returns the option's fate.
    pub fn carry(&mut self, section: &'static str, name: &str, value: Value, origin: &str) -> Fate {
        let shown = value.to_string();
        match self.write(section, name, Written::Plain(value), origin) {
            Fate::Carried(_) => Fate::Carried(format!("[{section}] {name} = {shown}")),
            other => other,
        }
    }

    /// Sets a field to the place or value of an option. The fate does not quote it.
    pub fn write(
        &mut self,
        section: &'static str,
        name: &str,
        value: Written,
        origin: &str,
    ) -> Fate {
        match self.set(section, name, value, origin) {
            Ok(()) => Fate::Carried(format!("[{section}] {name}")),
            Err(first) => {
                Fate::NotCarried(format!("[{section}] {name} has another value, of {first}"))
            }
        }
    }

    /// Returns true if a field is set.
    pub fn has(&self, section: &str, name: &str) -> bool {
        self.fields.iter().any(|field| field.section == section && field.name == name)
    }

    /// Adds a comment above a field.
    pub fn explain(&mut self, section: &str, name: &str, comment: impl Into<String>) {
        let mut fields = self.fields.iter_mut();
        if let Some(field) = fields.find(|field| field.section == section && field.name == name) {
            field.comments.push(comment.into());
        }
    }

    /// Adds a comment at the end of a section.
    pub fn hint(&mut self, section: &'static str, hint: impl Into<String>) {
        let hint = (section, hint.into());
        if !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
    }

    /// Adds a comment at the end of the file.
    pub fn end(&mut self, comment: impl Into<String>) {
        self.end.push(comment.into());
    }

    /// Returns the file. Paths below `folder` are written relative to it.
    pub fn text(&self, folder: &Path) -> String {
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
    pub fn text_to_check(&self, there: &Path) -> String {
        self.written(|value| match value {
            Written::Plain(value) => plain(value),
            Written::Path(path) if path.exists() => quoted(&path.to_string_lossy()),
            Written::Path(_) | Written::Placeholder(_) => quoted(&there.to_string_lossy()),
        })
    }

    fn written(&self, show: impl Fn(&Written) -> String) -> String {
        let mut text = String::new();
        comment(&mut text, self.head);
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use toml::Value;

    use super::{Draft, Written};

    #[test]
    fn a_line_break_in_an_option_ends_no_comment_and_no_value() {
        let mut draft = Draft::new("");
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
        let mut draft = Draft::new("");
        let four = || Written::Plain(Value::Integer(4));
        assert_eq!(draft.set("handler", "threads", four(), "a"), Ok(()));
        assert_eq!(draft.set("handler", "threads", four(), "b"), Ok(()));
        let five = Written::Plain(Value::Integer(5));
        assert_eq!(draft.set("handler", "threads", five, "c"), Err("a".to_owned()));
        assert!(draft.text(Path::new("/")).ends_with("[handler]\n# a\n# b\nthreads = 4\n"));
    }

    #[test]
    fn paths_are_relative_to_the_folder_of_the_file() {
        let mut draft = Draft::new("");
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
