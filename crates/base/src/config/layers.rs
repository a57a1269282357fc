//! Layers of a configuration: the file, the environment over it, and messages for invalid fields.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::config::ConfigError;
use crate::config::environment::Environment;

/// Error of a value that does not fit its field, with the path to the field.
pub type Misfit = serde_path_to_error::Error<toml::de::Error>;

/// Applies the environment to the text of a file and deserializes the result.
///
/// # Errors
///
/// Returns an error that names the line or the field, and a similar field for an unknown one.
pub fn parse<T: DeserializeOwned>(text: &str, environment: &Environment) -> Result<T, ConfigError> {
    let table = toml::from_str(text).map_err(|error| ConfigError::new(syntax(text, &error)))?;
    let table = overridden(table, environment)?;
    serde_path_to_error::deserialize(Value::Table(table))
        .map_err(|error| ConfigError::new(misfit(text, &error)))
}

fn overridden(mut table: Table, environment: &Environment) -> Result<Table, ConfigError> {
    for (name, path, value) in environment.fields() {
        set(&mut table, &path, read_value(value)).ok_or_else(|| {
            ConfigError::new(format!(
                "the environment's {name} names no field: use NSBRIDGE_<SECTION>__<FIELD>"
            ))
        })?;
    }
    Ok(table)
}

/// Sets `value` at `path` and creates missing tables. Returns `None` if the path names no field
/// within a section, or leads through a value that is no table.
fn set(table: &mut Table, path: &[String], value: Value) -> Option<()> {
    let (section, rest) = path.split_first()?;
    // The shells of operators, and orchestrators, write names in capitals.
    let known = table.keys().find(|known| known.eq_ignore_ascii_case(section)).cloned();
    let section = known.unwrap_or_else(|| section.clone());
    let inner = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    let inner = inner.as_table_mut()?;
    match rest {
        [] => None,
        [field] => {
            inner.insert(field.clone(), value);
            Some(())
        }
        rest => set(inner, rest, value),
    }
}

/// Parses a number, boolean, list or quoted string as TOML writes it. Anything else is a string.
fn read_value(text: &str) -> Value {
    let literal = format!("value = {text}");
    toml::from_str::<Table>(&literal)
        .ok()
        .and_then(|mut table| (table.len() == 1).then(|| table.remove("value"))?)
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

fn syntax(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().map(|span| line_of(text, span.start));
    let what = error.message();
    line.map_or_else(|| what.to_owned(), |line| format!("line {line}: {what}"))
}

/// Returns a sentence for a field that is unknown, missing or of another type.
fn misfit(text: &str, error: &Misfit) -> String {
    let what = error.inner().message();
    let place = place(error).map_or(String::new(), |place| format!("[{place}] "));
    let Some(unknown) = unknown_field(what) else {
        return format!("{place}{}", without_value(what));
    };
    let line = find_line(text, unknown).map_or(String::new(), |n| format!("line {n}: "));
    // The other names between backticks are the fields that there are.
    let fields = what.split('`').skip(1).step_by(2).skip(1);
    let nearest = fields.max_by(|a, b| {
        strsim::jaro_winkler(unknown, a).total_cmp(&strsim::jaro_winkler(unknown, b))
    });
    let hint = nearest
        .filter(|near| strsim::jaro_winkler(unknown, near) > 0.7)
        .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    format!("{line}{place}unknown field `{unknown}`{hint}")
}

/// Leaves out the string that serde quotes where another type was expected: it may be a secret.
fn without_value(what: &str) -> Cow<'_, str> {
    let starts = ["invalid type: string \"", "invalid value: string \""];
    let is_one = starts.iter().any(|start| what.starts_with(start));
    match what.rsplit_once(", expected ") {
        Some((_, expected)) if is_one => format!("it is a string, expected {expected}").into(),
        _ => what.into(),
    }
}

/// Returns the field that serde names as unknown. Its error has no other form than this message.
fn unknown_field(what: &str) -> Option<&str> {
    what.strip_prefix("unknown field `")?.split('`').next()
}

/// Returns the field that an error is about, or the table with an unknown one: `reply.window`.
pub fn place(error: &Misfit) -> Option<String> {
    let path = error.path().to_string();
    let unknown = unknown_field(error.inner().message());
    let path = match unknown {
        Some(unknown) => path.strip_suffix(unknown).unwrap_or(&path).trim_end_matches('.'),
        None => &path,
    };
    Some(path.to_owned()).filter(|path| !path.is_empty() && path != ".")
}

fn find_line(text: &str, field: &str) -> Option<usize> {
    let is_it = |line: &str| {
        let line = line.trim_start().trim_start_matches('[');
        line.strip_prefix(field).is_some_and(|rest| rest.trim_start().starts_with(['=', ']', '.']))
    };
    text.lines().position(is_it).map(|index| index + 1)
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::parse;
    use crate::config::environment::Environment;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Config {
        server: Server,
        #[serde(default)]
        models: BTreeMap<String, Server>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Server {
        size: u16,
    }

    fn read(text: &str, name: &str, value: &str) -> Result<Config, String> {
        let environment = Environment::new([(name.to_owned(), value.to_owned())]);
        parse(text, &environment).map_err(|error| error.to_string())
    }

    #[test]
    fn a_variable_sets_a_field_also_of_a_table_that_is_not_there() {
        let config = read("[server]\nsize = 1", "NSBRIDGE_MODELS__TALE-7M__SIZE", "2").unwrap();
        assert_eq!((config.server.size, config.models["tale-7m"].size), (1, 2));
        assert_eq!(read("", "NSBRIDGE_SERVER__SIZE", "3").unwrap().server.size, 3);
        // A name in the file keeps its capitals, and one that has small letters is taken as it is.
        let file = "[server]\nsize = 1\n[models.Qwen3]\nsize = 1";
        let config = read(file, "NSBRIDGE_MODELS__QWEN3__SIZE", "2").unwrap();
        assert_eq!((config.models.len(), config.models["Qwen3"].size), (1, 2));
        let config =
            read("[server]\nsize = 1", "NSBRIDGE_MODELS__Qwen_SERVICE_3__SIZE", "2").unwrap();
        assert_eq!(config.models["Qwen_SERVICE_3"].size, 2);
        // Kubernetes sets such a variable for a service called nsbridge.
        let set = read("[server]\nsize = 1", "NSBRIDGE_PORT_8080_TCP", "tcp://10.0.0.1:8080");
        assert_eq!(set.unwrap().server.size, 1);
    }

    #[test]
    fn what_does_not_fit_is_told_by_its_place() {
        let of = |text: &str| read(text, "PATH", "").unwrap_err();
        assert_eq!(
            of("[server]\nsise = 1"),
            "line 2: [server] unknown field `sise`; did you mean `size`?"
        );
        assert_eq!(of("[server]\nsize = \"a\""), "[server.size] it is a string, expected u16");
        assert_eq!(of("[server\n"), "line 1: unclosed table, expected `]`");
        let secret = of("server = \"amqp://u:canary, expected@b\"");
        assert_eq!(secret, "[server] it is a string, expected struct Server");
        let told = read("", "NSBRIDGE_SERVER", "1").unwrap_err();
        assert!(told.contains("NSBRIDGE_SERVER names no field"), "{told}");
    }
}
