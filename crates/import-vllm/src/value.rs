//! Values of arguments, read as vLLM reads them.

use serde_json::Value as Json;
use toml::{Table, Value};

use crate::arguments::{Argument, Kind};
use crate::settings::Given;

/// Number of choices up to which an error lists them.
const MOST_LISTED: usize = 12;

/// Reads what is given for an argument; `None` for the value of an absent argument. An error is the end of
/// a sentence about the argument, and does not quote the value, which may be a token.
pub(super) fn read(argument: &Argument, given: &Given) -> Result<Option<Value>, String> {
    let flag = argument.flag();
    let values = match given {
        Given::On | Given::Off if !argument.has_value() => {
            return Ok(Some(Value::Boolean(*given == Given::On)));
        }
        Given::Values(_) if argument.kind == Kind::Boolean => {
            return Err(format!("it takes no value: write `{flag}` or `--no-{}`", &flag[2..]));
        }
        Given::Values(_) if argument.kind == Kind::Switch => {
            return Err(format!("it takes no value: write `{flag}`"));
        }
        Given::Fields(_) if !matches!(argument.kind, Kind::Json | Kind::JsonOrString) => {
            return Err("its value is no object with fields".to_owned());
        }
        Given::Fields(fields) => return Ok(Some(toml_of(&Json::Object(fields.clone())))),
        Given::Values(values) if !values.is_empty() => values,
        Given::On | Given::Off | Given::Values(_) => return Err("it has no value".to_owned()),
    };
    if argument.optional
        && matches!(values.as_slice(), [value] if value.is_empty() || value == "None")
    {
        return Ok(None);
    }
    let mut read = values.iter().map(|value| one(argument, value));
    match argument.many {
        true => read.collect::<Result<_, _>>().map(|values| Some(Value::Array(values))),
        false => read.next().transpose(),
    }
}

fn one(argument: &Argument, text: &str) -> Result<Value, String> {
    let value = match argument.kind {
        Kind::Integer => text.trim().parse().map(Value::Integer).map_err(|_| "a whole number"),
        Kind::Count => count(text).map(Value::Integer).ok_or("a whole number, such as 8192 or 8k"),
        Kind::CountOrAuto if text.trim().eq_ignore_ascii_case("auto") => Ok(Value::Integer(-1)),
        Kind::CountOrAuto => {
            count(text).map(Value::Integer).ok_or("auto or a whole number, such as 8192 or 8k")
        }
        Kind::Number => match text.trim().parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::Float(number)),
            _ => Err("a number"),
        },
        Kind::Backend => Ok(Value::String(text.to_lowercase().replace('-', "_"))),
        Kind::JsonOrString if !is_object(text) => Ok(Value::String(text.to_owned())),
        Kind::Json | Kind::JsonOrString => match serde_json::from_str::<Json>(text) {
            Ok(json @ Json::Object(_)) => Ok(toml_of(&json)),
            _ => Err("a JSON object"),
        },
        Kind::Boolean | Kind::Switch | Kind::String | Kind::Secret => {
            Ok(Value::String(text.to_owned()))
        }
    };
    let value = value.map_err(|what| format!("it must be {what}"))?;
    let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if argument.choices.is_empty() || argument.choices.contains(&shown) {
        return Ok(value);
    }
    Err(not_a_choice(&argument.choices, &shown))
}

fn not_a_choice(choices: &[String], value: &str) -> String {
    if choices.len() <= MOST_LISTED {
        return format!("it must be one of {}", choices.join(", "));
    }
    let score = |choice: &&String| strsim::jaro_winkler(choice, value);
    let nearest = choices.iter().max_by(|one, other| score(one).total_cmp(&score(other)));
    format!(
        "vLLM has {} values for it, such as {}",
        choices.len(),
        nearest.map_or("", String::as_str)
    )
}

/// Reads a whole number, also as `25.6k` (thousands) or `8K` (1024 each).
pub(super) fn count(text: &str) -> Option<i64> {
    let text = text.trim();
    let Some(unit) = text.chars().last().filter(char::is_ascii_alphabetic) else {
        return text.parse().ok();
    };
    let power = 1 + "kmgt".find(unit.to_ascii_lowercase())?;
    let number = &text[..text.len() - 1];
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    let power = u32::try_from(power).ok()?;
    if unit.is_ascii_uppercase() {
        return number.parse::<i64>().ok()?.checked_mul(1024_i64.pow(power));
    }
    Some((number.parse::<f64>().ok()? * 1000_f64.powf(power.into())) as i64)
}

fn is_object(text: &str) -> bool {
    let text = text.trim();
    text.starts_with('{') && text.ends_with('}')
}

/// Returns true if a shell or an orchestrator would put a value into the text.
pub(super) fn has_variable(text: &str) -> bool {
    let mut after = text.split('$').skip(1);
    after.any(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic() || "_({".contains(c)))
}

/// Returns a JSON value as TOML. An object that TOML cannot have is its text, which vLLM reads, too.
pub(super) fn toml_of(json: &Json) -> Value {
    converted(json).unwrap_or_else(|| Value::String(json.to_string()))
}

fn converted(json: &Json) -> Option<Value> {
    Some(match json {
        Json::Null => return None,
        Json::Bool(flag) => Value::Boolean(*flag),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Value::Integer(number),
            None if number.is_f64() => Value::Float(number.as_f64()?),
            None => return None,
        },
        Json::String(text) => Value::String(text.clone()),
        Json::Array(values) => Value::Array(values.iter().map(converted).collect::<Option<_>>()?),
        Json::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| Some((name.clone(), converted(value)?)));
            Value::Table(fields.collect::<Option<Table>>()?)
        }
    })
}
