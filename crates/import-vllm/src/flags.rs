//! Words of a command line as arguments, by the rules of vLLM's parser.

use std::iter::Peekable;

use serde_json::{Map, Value as Json, json};

use crate::arguments::{Argument, Arguments, Flag};
use crate::settings::{Given, MODEL, Setting, Settings};
use crate::value::count;

/// Reads words into settings.
pub(super) fn read<'a>(
    arguments: &'a Arguments,
    words: &[String],
    place: &str,
    settings: &mut Settings<'a>,
) {
    let mut add = |name: &str, argument: Option<&'a Argument>, given: Given| {
        let (name, place) = (name.to_owned(), place.to_owned());
        settings.add(Setting { name, argument, given, place, without_effect: Vec::new() });
    };
    let mut has_model = false;
    // Behind `--` no word is a flag.
    let mut has_flags = true;
    let mut numbered = (1..).zip(words.iter().map(String::as_str)).peekable();
    while let Some((number, word)) = numbered.next() {
        if has_flags && word == "--" {
            has_flags = false;
        } else if let Some(given) = optimization_level(word, &mut numbered).filter(|_| has_flags) {
            add("-O", arguments.get("optimization_level"), given);
        } else if !has_flags || !is_flag(word) {
            // A word that no flag takes may be a secret: it is counted, not shown.
            if has_model {
                add(&format!("word {number}"), None, Given::On);
            } else {
                add(MODEL, arguments.get("model"), Given::Values(vec![word.to_owned()]));
            }
            has_model = true;
        } else {
            let (written, value) =
                word.split_once('=').map_or((word, None), |(flag, value)| (flag, Some(value)));
            let flag = with_dashes(written);
            if let Some((flag, path)) = flag.split_once('.') {
                let value = value.or_else(|| numbered.next().map(|(_, word)| word));
                let argument = arguments.find(flag).map(|flag| flag.argument);
                let given = match argument {
                    Some(_) => Given::Fields(nested(path, value.unwrap_or_default())),
                    None => Given::On,
                };
                add(&format!("{flag}.{path}"), argument, given);
            } else {
                let found = arguments.find(&flag);
                let given = given(found, value, &mut numbered);
                add(written, found.map(|flag| flag.argument), given);
            }
        }
    }
}

/// Returns what is given for a flag. An unknown flag takes the words up to the next flag.
fn given<'w>(
    flag: Option<Flag<'_>>,
    value: Option<&str>,
    words: &mut Peekable<impl Iterator<Item = (usize, &'w str)>>,
) -> Given {
    if let Some(value) = value {
        return Given::Values(vec![value.to_owned()]);
    }
    let most = match flag {
        Some(Flag { is_off: true, .. }) => return Given::Off,
        Some(Flag { argument, .. }) if !argument.has_value() => return Given::On,
        Some(Flag { argument, .. }) if !argument.many => 1,
        _ => usize::MAX,
    };
    let mut values = Vec::new();
    while values.len() < most {
        let Some((_, word)) = words.next_if(|(_, word)| !is_flag(word)) else { break };
        values.push(word.to_owned());
    }
    if flag.is_none() && values.is_empty() { Given::On } else { Given::Values(values) }
}

/// Returns what `-O3`, `-O=3` or `-O 3` gives; `None` for another word.
fn optimization_level<'w>(
    word: &str,
    words: &mut Peekable<impl Iterator<Item = (usize, &'w str)>>,
) -> Option<Given> {
    let level = word.strip_prefix("-O")?;
    let level = match level {
        "" => words.next_if(|(_, word)| ["0", "1", "2", "3"].contains(word)).map(|(_, word)| word),
        level => Some(level.strip_prefix('=').unwrap_or(level)),
    };
    Some(Given::Values(level.into_iter().map(str::to_owned).collect()))
}

/// Returns true for a word that is no value: a negative number and a text with spaces are values.
fn is_flag(word: &str) -> bool {
    let flag = word.split('=').next().unwrap_or_default();
    let is_number = word.strip_prefix('-').is_some_and(|rest| rest.parse::<f64>().is_ok());
    flag.len() > 1 && flag.starts_with('-') && !is_number && !flag.contains(char::is_whitespace)
}

/// Returns a long flag with dashes in place of underscores, up to its first dot.
fn with_dashes(flag: &str) -> String {
    if !flag.starts_with("--") {
        return flag.to_owned();
    }
    match flag.split_once('.') {
        Some((flag, path)) => format!("{}.{path}", flag.replace('_', "-")),
        None => flag.replace('_', "-"),
    }
}

/// Returns the object with a value at a path such as `a.b`. The path of an element of a list ends in `+`.
fn nested(path: &str, value: &str) -> Map<String, Json> {
    let (path, value) = match path.strip_suffix('+') {
        Some(path) => (path, json!(value.split(',').collect::<Vec<_>>())),
        None => (path, read_value(value)),
    };
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let mut value = value;
    for name in rest.into_iter().flat_map(|rest| rest.rsplit('.')) {
        value = json!({ name: value });
    }
    [(name.to_owned(), value)].into_iter().collect()
}

/// Reads JSON, then a number such as `8k`; any other value is a text.
fn read_value(value: &str) -> Json {
    let read = serde_json::from_str(value).ok();
    read.or_else(|| count(value).map(Json::from)).unwrap_or_else(|| Json::String(value.to_owned()))
}
