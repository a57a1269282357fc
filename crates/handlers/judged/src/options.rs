//! Options of a judged handler: those of the handler, and the table `[judge]`.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, de};
use serde_json::{Map, Value};

use crate::policy::Selection;

/// Name of the judge's table among the handler's options.
const JUDGE: &str = "judge";

/// `[handler]` table of a [`Judged`](crate::Judged) handler, with the table `[judge]` as its field
/// `judge`. Nothing is judged without that table. A literal ends in `..JudgedOptions::default()`
/// where fields are left out: minor versions add fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JudgedOptions<O, J> {
    /// Options of the judge; `None` if nothing is judged.
    pub judge: Option<JudgeOptions<J>>,
    /// Options of the handler.
    pub own: O,
}

/// Table `[judge]`: these fields, and those of the judge.
///
/// A literal ends in `..JudgeOptions::default()`: minor versions add fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JudgeOptions<J> {
    /// Categories that refuse a prompt. Absent: all.
    pub before: Selection,
    /// Categories that refuse a reply. Absent: all whose [`in_replies`](crate::Category::in_replies)
    /// is true.
    pub after: Selection,
    /// Lowest score that refuses a text, by category. Absent: 0.5.
    pub thresholds: BTreeMap<String, f64>,
    /// Fields of the judge.
    pub own: J,
}

impl<'de, O: DeserializeOwned, J: DeserializeOwned> Deserialize<'de> for JudgedOptions<O, J> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = Map::deserialize(deserializer)?;
        let judge = table.remove(JUDGE).map(read).transpose();
        let judge = judge.map_err(|error| D::Error::custom(format!("[judge] {error}")))?;
        Ok(Self { judge, own: rest(table).map_err(D::Error::custom)? })
    }
}

impl<'de, J: DeserializeOwned> Deserialize<'de> for JudgeOptions<J> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = Map::deserialize(deserializer)?;
        Ok(Self {
            before: take(&mut table, "before")?,
            after: take(&mut table, "after")?,
            thresholds: take(&mut table, "thresholds")?,
            own: rest(table).map_err(D::Error::custom)?,
        })
    }
}

/// Takes a field out of the table.
fn take<T: DeserializeOwned + Default, E: de::Error>(
    table: &mut Map<String, Value>,
    name: &str,
) -> Result<T, E> {
    let Some(value) = table.remove(name) else { return Ok(T::default()) };
    read(value).map_err(|error| E::custom(format!("{name}: {error}")))
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(value)
}

/// Reads the other fields of a table. `()`, which no table deserializes to, stands for no further
/// fields.
fn rest<T: DeserializeOwned>(table: Map<String, Value>) -> Result<T, serde_json::Error> {
    let none = if table.is_empty() { read(Value::Null).ok() } else { None };
    none.map_or_else(|| read(Value::Object(table)), Ok)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::{JudgeOptions, JudgedOptions};
    use crate::policy::Selection;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Own {
        size: u32,
    }

    type Options = JudgedOptions<Own, Own>;

    #[track_caller]
    fn read(text: &str) -> Result<Options, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
    }

    #[test]
    fn the_judge_has_a_table_of_its_own() {
        assert_eq!(read("size = 3").unwrap(), Options { judge: None, own: Own { size: 3 } });
        let judge = read("size = 3\n[judge]\nsize = 4\nbefore = false\nafter = [\"a\"]").unwrap();
        let expected = JudgeOptions {
            before: Selection::All(false),
            after: Selection::Named(vec!["a".to_owned()]),
            own: Own { size: 4 },
            ..JudgeOptions::default()
        };
        assert_eq!(judge, Options { judge: Some(expected), own: Own { size: 3 } });
        let none: JudgedOptions<(), Own> = toml::from_str("").unwrap();
        assert_eq!(none, JudgedOptions::default());
    }

    #[test]
    fn an_unknown_field_is_refused_in_either_table() {
        let refusal = read("sise = 3").unwrap_err();
        assert!(refusal.contains("`sise`") && !refusal.contains("[judge]"), "{refusal}");
        let refusal = read("[judge]\nbefor = true").unwrap_err();
        assert!(refusal.contains("[judge]") && refusal.contains("`befor`"), "{refusal}");
        let refusal = read("[judge]\nbefore = 1").unwrap_err();
        assert!(refusal.contains("[judge] before"), "{refusal}");
        assert!(toml::from_str::<JudgedOptions<(), Own>>("x = 1").is_err());
    }
}
