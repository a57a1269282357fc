//! Layers of a configuration: the file, the environment over it, and messages for invalid fields.

use toml::{Table, Value};

use super::Config;

const PREFIX: &str = "NSBRIDGE_";

/// Parts of environment names that are no configuration fields: names of the tests, and names that
/// an orchestrator sets for a service called nsbridge.
const RESERVED: [&str; 3] = ["NSBRIDGE_TEST_", "_SERVICE_", "_PORT"];

/// Error of a value that does not fit its field, with the path to the field.
pub(super) type Misfit = serde_path_to_error::Error<toml::de::Error>;

/// Applies the environment to the file's text and parses the result.
pub(super) fn parse(
    text: &str,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, String> {
    let mut table: Table = toml::from_str(text).map_err(|error| syntax(text, &error))?;
    for (name, value) in environment {
        let Some(field) = name.strip_prefix(PREFIX) else { continue };
        if RESERVED.iter().any(|reserved| name.contains(reserved)) {
            continue;
        }
        let path: Vec<String> = field.split("__").map(str::to_lowercase).collect();
        set(&mut table, &path, read_value(&value)).ok_or_else(|| {
            format!("the environment's {name} names no field: use {PREFIX}<SECTION>__<FIELD>")
        })?;
    }
    serde_path_to_error::deserialize(Value::Table(table)).map_err(|error| misfit(text, &error))
}

/// Sets `value` at `path` and creates missing tables. Returns `None` if the path names no field
/// within a section, or leads through a value that is no table.
fn set(table: &mut Table, path: &[String], value: Value) -> Option<()> {
    let (section, rest) = path.split_first()?;
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
    let Some(unknown) = unknown_field(what) else { return format!("{place}{what}") };
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

/// Returns the field that serde names as unknown. Its error has no other form than this message.
fn unknown_field(what: &str) -> Option<&str> {
    what.strip_prefix("unknown field `")?.split('`').next()
}

/// Returns the field that an error is about, or the table with an unknown one: `reply.window`.
pub(super) fn place(error: &Misfit) -> Option<String> {
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
