//! jinja2's own tests, filters and methods, where the template engine's differ from them or are missing.
//!
//! A chat template is written for jinja2 as transformers configures it. Functions that read a clock or
//! draw at random are left out: a prompt is a function of its request.

use std::fmt;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use super::json;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Maximum width to which a text is padded, in characters.
const MAX_WIDTH: usize = 4096;

/// Adds jinja2's behavior to an environment.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            write_repr(out, value).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    });
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    for name in ["length", "count"] {
        environment.add_filter(name, length);
    }
    environment.add_filter("int", int);
    environment.add_filter("center", |text: &str, width: Option<usize>| {
        padded(text, width.unwrap_or(80), ' ', Side::Both)
    });
    environment.add_filter("striptags", strip_tags);
    environment.add_filter("wordcount", |text: &str| {
        text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .filter(|word| !word.is_empty())
            .count()
    });
    environment.add_filter("truncate", truncate);
    environment.add_filter("urlencode", url_encode);
    environment.add_filter("filesizeformat", minijinja_contrib::filters::filesizeformat);
    environment.add_filter("tojson", json::to_json);
    environment
        .add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
}

/// Writes a value as Python's `repr` does, from which the engine's own form differs in floats.
fn write_repr(out: &mut Output<'_>, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            out.write_str(&python_float(f64::try_from(value.clone()).unwrap_or_default()))
        }
        ValueKind::Seq if !value.is_tuple() => {
            out.write_str("[")?;
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.write_str(if index == 0 { "" } else { ", " })?;
                write_repr(out, &item)?;
            }
            out.write_str("]")
        }
        ValueKind::Map => {
            out.write_str("{")?;
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.write_str(if index == 0 { "" } else { ", " })?;
                write_repr(out, &key)?;
                out.write_str(": ")?;
                write_repr(out, &value.get_item(&key).unwrap_or_default())?;
            }
            out.write_str("}")
        }
        _ => write!(out, "{value:?}"),
    }
}

/// Returns a float as Python's `str` does.
fn python_float(number: f64) -> String {
    match () {
        () if number.is_nan() => "nan".to_owned(),
        () if number.is_infinite() => if number > 0.0 { "inf" } else { "-inf" }.to_owned(),
        () => json::float(number),
    }
}

fn refused(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Returns true for what has a length and items by a key, which in Python includes texts and dicts.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined | ValueKind::Seq | ValueKind::String | ValueKind::Map
    )
}

fn length(value: &Value) -> Result<usize> {
    if value.is_undefined() {
        return Ok(0);
    }
    let none = || refused(format!("a value of type {} has no length", value.kind()));
    value.len().ok_or_else(none)
}

/// Reads a number. What is none becomes the default, as in Python.
fn int(
    state: &State<'_, '_>,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value> {
    let fallback = match &default {
        Some(default) => default.clone(),
        None => kwargs.get::<Option<Value>>("default")?.unwrap_or(Value::from(0)),
    };
    Ok(minijinja::filters::int(state, value, default, base, kwargs).unwrap_or(fallback))
}

/// Shortens a text. The arguments may have names or, as in jinja2, places.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes its arguments by value")]
fn truncate(
    state: &mut State<'_, '_>,
    text: &Value,
    placed: Rest<Value>,
    named: Kwargs,
) -> Result<Value> {
    let names = ["length", "killwords", "end", "leeway"];
    let mut all: Vec<(&str, Value)> = names.into_iter().zip(placed.0).collect();
    for name in named.args() {
        all.push((name, named.get(name)?));
    }
    minijinja_contrib::filters::truncate(state, text, all.into_iter().collect())
}

/// Quotes a text for a path of a URL, or the keys and values of a dict for its query.
fn url_encode(value: &Value) -> Result<String> {
    if value.kind() != ValueKind::Map {
        return Ok(url_quoted(value, "/"));
    }
    let mut pairs = Vec::new();
    for key in value.try_iter()? {
        pairs.push([&key, &value.get_item(&key)?].map(|part| url_quoted(part, "")).join("="));
    }
    Ok(pairs.join("&").replace("%20", "+"))
}

fn url_quoted(value: &Value, safe: &str) -> String {
    let quoted = |byte: u8| match char::from(byte) {
        c if c.is_ascii_alphanumeric() || "_.-~".contains(c) || safe.contains(c) => c.to_string(),
        _ => format!("%{byte:02X}"),
    };
    value.to_string().bytes().map(quoted).collect()
}

fn strip_tags(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, tag)) = rest.split_once('<') {
        out.push_str(before);
        rest = if let Some((_, after)) = tag.split_once('>') {
            after
        } else {
            out.push('<');
            out.push_str(tag);
            ""
        };
    }
    out.push_str(rest);
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Side of a text that is padded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    Both,
}

fn padded(text: &str, width: usize, fill: char, side: Side) -> Result<String> {
    if width > MAX_WIDTH {
        return Err(refused(format!("a text is padded to {MAX_WIDTH} characters at most")));
    }
    let missing = width.saturating_sub(text.chars().count());
    let left = match side {
        Side::Left => missing,
        Side::Right => 0,
        // Python puts the odd one to the left if the width is odd.
        Side::Both => missing / 2 + (missing & width & 1),
    };
    let fills = |count: usize| fill.to_string().repeat(count);
    Ok(fills(left) + text + &fills(missing - left))
}

/// Calls a method of Python's texts and lists.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value> {
    let own = match value.kind() {
        ValueKind::String => text_method(value.as_str().unwrap_or_default(), name, args),
        ValueKind::Seq if name == "index" => Some(list_index(value, args)),
        _ => None,
    };
    match own {
        Some(result) => result,
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn list_index(list: &Value, args: &[Value]) -> Result<Value> {
    let (wanted,): (&Value,) = minijinja::value::from_args(args)?;
    let index = list.try_iter()?.position(|item| item == *wanted);
    index.map(Value::from).ok_or_else(|| refused("the value is not in the list"))
}

/// Calls one of the methods that the engine's own set lacks.
fn text_method(text: &str, name: &str, args: &[Value]) -> Option<Result<Value>> {
    Some(match name {
        "removeprefix" => one(args).map(|part| text.strip_prefix(part).unwrap_or(text).into()),
        "removesuffix" => one(args).map(|part| text.strip_suffix(part).unwrap_or(text).into()),
        "partition" => one(args).and_then(|by| parts(text, text.split_once(by), by, false)),
        "rpartition" => one(args).and_then(|by| parts(text, text.rsplit_once(by), by, true)),
        "rsplit" => right_split(text, args),
        "index" | "rindex" => one(args).and_then(|part| {
            let at = if name == "index" { text.find(part) } else { text.rfind(part) };
            let at = at.ok_or_else(|| refused("the text is not found"))?;
            Ok(text[..at].chars().count().into())
        }),
        "zfill" => width(args).and_then(|width| {
            let (sign, digits) = match text.strip_prefix(['+', '-']) {
                Some(digits) => text.split_at(text.len() - digits.len()),
                None => ("", text),
            };
            let digits = padded(digits, width.saturating_sub(sign.len()), '0', Side::Left)?;
            Ok(format!("{sign}{digits}").into())
        }),
        "ljust" => justified(text, args, Side::Right),
        "rjust" => justified(text, args, Side::Left),
        "center" => justified(text, args, Side::Both),
        "casefold" => Ok(text.to_lowercase().replace('\u{df}', "ss").into()),
        "swapcase" => Ok(text.chars().flat_map(swapped).collect::<String>().into()),
        "expandtabs" => expanded(text, args),
        "encode" => Ok(text.into()),
        _ => return None,
    })
}

fn one(args: &[Value]) -> Result<&str> {
    let (text,): (&str,) = minijinja::value::from_args(args)?;
    Ok(text)
}

fn width(args: &[Value]) -> Result<usize> {
    let (width,): (usize,) = minijinja::value::from_args(args)?;
    Ok(width)
}

fn justified(text: &str, args: &[Value], side: Side) -> Result<Value> {
    let (width, fill): (usize, Option<&str>) = minijinja::value::from_args(args)?;
    let mut fill = fill.unwrap_or(" ").chars();
    match (fill.next(), fill.next()) {
        (Some(fill), None) => padded(text, width, fill, side).map(Value::from),
        _ => Err(refused("the character that pads a text must be one")),
    }
}

/// Returns the three parts of a text. A text without the separator is the first, or from the right the
/// last of them.
fn parts(text: &str, found: Option<(&str, &str)>, by: &str, from_right: bool) -> Result<Value> {
    if by.is_empty() {
        return Err(refused("the separator is empty"));
    }
    let parts = match found {
        Some((before, after)) => [before, by, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn right_split(text: &str, args: &[Value]) -> Result<Value> {
    let (by, most): (Option<&str>, Option<i64>) = minijinja::value::from_args(args)?;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = match by {
        Some("") => return Err(refused("the separator is empty")),
        Some(by) => text.rsplitn(most + 1, by).collect(),
        None => {
            let (mut parts, mut rest) = (Vec::new(), text.trim());
            while !rest.is_empty() && parts.len() < most {
                let (before, word) = rest.rsplit_once(char::is_whitespace).unwrap_or(("", rest));
                parts.push(word);
                rest = before.trim_end();
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            parts
        }
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

fn swapped(c: char) -> Vec<char> {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

fn expanded(text: &str, args: &[Value]) -> Result<Value> {
    let (step,): (Option<usize>,) = minijinja::value::from_args(args)?;
    let step = step.unwrap_or(8);
    if step > MAX_WIDTH {
        return Err(refused(format!("a tab has {MAX_WIDTH} characters at most")));
    }
    let (mut out, mut column) = (String::with_capacity(text.len()), 0);
    for c in text.chars() {
        if c == '\t' {
            let spaces = if step == 0 { 0 } else { step - column % step };
            out.push_str(&" ".repeat(spaces));
            column += spaces;
        } else {
            out.push(c);
            column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
        }
    }
    Ok(out.into())
}
