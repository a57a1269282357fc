//! Fields of a request's JSON body, taken one by one, so that an error names its field.
//!
//! A body of 8 MiB can become 500 MiB of values. Fields therefore stay text until they are taken, and
//! each is measured against its bounds before it becomes a value.

use std::borrow::Cow;
use std::fmt;

use nsbridge_gateway_access::Extent;
use nsbridge_protocol::TextInput;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{ApiError, Result, UNSUPPORTED};

/// Maximum number of fields of a request.
const MOST_FIELDS: usize = 128;

/// Maximum size of a field that has no bound of its own in [`Bound::of`].
const FIELD: Bound = Bound { bytes: 64 << 10, values: 16 << 10 };

/// Maximum number of values in the messages, items or questions of a request.
const MOST_VALUES: usize = 128 << 10;

/// Maximum size of instructions, in bytes. Each of three events of a response has them.
const MOST_INSTRUCTIONS: usize = 1 << 20;

/// Maximum size of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// Bytes of its JSON text.
    bytes: usize,
    /// Values in it, nested ones included.
    values: usize,
}

impl Bound {
    /// Bound of the input of any model.
    pub(crate) const BODY: Self = Self { bytes: usize::MAX, values: usize::MAX };

    /// Bound of texts and lists of token ids, of which the body's size is the only other one.
    pub(crate) const TOKENS: Self =
        Self { bytes: usize::MAX, values: TextInput::MOST_PROMPT_TOKENS + 4096 };

    /// Bound of lists of token ids that concern the reply.
    const TOKEN_LIST: Self = Self { bytes: 6 << 20, values: TextInput::MOST_TOKENS + 2 };

    /// Returns the bound of the field `name`. The worker's bounds of tools, variables and formats are
    /// the same.
    fn of(name: &str) -> Self {
        let bytes = |bytes| Self { bytes, ..FIELD };
        match name {
            "input" | "messages" | "questions" | "system" => {
                Self { bytes: usize::MAX, values: MOST_VALUES }
            }
            "prompt" | "tokens" => Self::TOKENS,
            "instructions" => bytes(MOST_INSTRUCTIONS),
            "chat_template_kwargs" => bytes(TextInput::MOST_TEMPLATE_BYTES),
            "output_config" | "output_format" | "response_format" | "structured_outputs"
            | "text" => bytes(TextInput::MOST_FORMAT_BYTES),
            "tools" => Self { bytes: TextInput::MOST_TEMPLATE_BYTES, values: 2 * FIELD.values },
            "bad_token_ids" | "logit_bias" | "stop_token_ids" => Self::TOKEN_LIST,
            _ => FIELD,
        }
    }

    /// Refuses a field beyond its bound, before memory for its values is taken.
    fn check(self, name: &str, json: &str) -> Result<()> {
        let extent = Extent::of(json.as_bytes());
        let (has, what, most) = if extent.bytes > self.bytes {
            (extent.bytes, "bytes", self.bytes)
        } else if extent.values > self.values {
            (extent.values, "values", self.values)
        } else {
            return Ok(());
        };
        let message = format!("`{name}` has {has} {what}: give at most {most}");
        Err(ApiError::field(name, message).coded("field_too_large"))
    }
}

/// Fields that have not been read yet, as the text of the body.
pub(crate) struct Fields<'a> {
    fields: Vec<(Cow<'a, str>, &'a RawValue)>,
    /// True if there were more than [`MOST_FIELDS`].
    are_many: bool,
}

impl<'a> Fields<'a> {
    /// Parses the body of a request.
    ///
    /// # Errors
    ///
    /// Returns an error if the body is not a JSON object, or has too many fields.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self> {
        let fields: Self = serde_json::from_slice(body).map_err(|error| {
            let message = match error.classify() {
                serde_json::error::Category::Data => {
                    "the body of the request must be a JSON object".to_owned()
                }
                _ => format!("the body of the request is not valid JSON {}", why(body, &error)),
            };
            ApiError::bad_request(message)
        })?;
        if fields.are_many {
            let message = format!("the body of the request has more than {MOST_FIELDS} fields");
            return Err(ApiError::bad_request(message).coded("too_many_fields"));
        }
        Ok(fields)
    }

    /// Takes a field. A field that is null counts as absent.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field if its value has another type, or is too large.
    pub(crate) fn take<T: Deserialize<'a>>(&mut self, name: &str) -> Result<Option<T>> {
        let Some(raw) = self.raw(name, Bound::of(name))? else { return Ok(None) };
        parse(name, raw).map(Some)
    }

    /// Takes a field as it is.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field if it is too large.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<Value>> {
        self.take(name)
    }

    /// Takes a field as the text of the body.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field if it is beyond the bound.
    pub(crate) fn raw(&mut self, name: &str, bound: Bound) -> Result<Option<&'a RawValue>> {
        Ok(self.raw_or_null(name, bound)?.filter(|raw| !is_null(raw)))
    }

    /// Takes a field as the text of the body, also if it is null.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field if it is beyond the bound.
    pub(crate) fn raw_or_null(&mut self, name: &str, bound: Bound) -> Result<Option<&'a RawValue>> {
        let raw = self.remove(name);
        raw.map_or(Ok(()), |raw| bound.check(name, raw.get()))?;
        Ok(raw)
    }

    /// Takes a text that names something outside the request, such as its user.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field if it is no text, or is too long.
    pub(crate) fn label(&mut self, name: &str) -> Result<Option<String>> {
        /// Longest label, in characters.
        const MAX_LABEL_CHARS: usize = 512;
        let label: Option<String> = self.take(name)?;
        if label.as_ref().is_some_and(|label| label.chars().count() > MAX_LABEL_CHARS) {
            let message = format!("`{name}` must have {MAX_LABEL_CHARS} characters at most");
            return Err(ApiError::field(name, message));
        }
        Ok(label)
    }

    /// Takes a field that must be present.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field if it is absent, has another type, or is too large.
    pub(crate) fn need<T: Deserialize<'a>>(&mut self, name: &str) -> Result<T> {
        let missing = || ApiError::field(name, format!("`{name}` is missing"));
        self.take(name)?.ok_or_else(missing)
    }

    /// Drops fields that have no effect on a reply.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        self.fields.retain(|(name, _)| !names.contains(&&**name));
    }

    /// Takes a field that may only have its default value.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field and the value that it may have.
    pub(crate) fn only(&mut self, name: &str, default: &Value) -> Result<()> {
        match self.value(name)? {
            Some(value) if value != *default => {
                let allowed = match default {
                    Value::Null => "absent or null".to_owned(),
                    default => format!("absent, null or {default}"),
                };
                let message = format!("`{name}` is not supported: it must be {allowed}");
                Err(ApiError::field(name, message))
            }
            _ => Ok(()),
        }
    }

    /// Refuses the fields that nothing has taken.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first of them.
    pub(crate) fn finish(self) -> Result<()> {
        match self.fields.iter().find(|(_, raw)| !is_null(raw)) {
            None => Ok(()),
            Some((name, _)) => {
                let name: String = name.chars().take(64).collect();
                Err(ApiError::field(&name, format!("the field `{name}` is not supported"))
                    .coded(UNSUPPORTED))
            }
        }
    }

    fn remove(&mut self, name: &str) -> Option<&'a RawValue> {
        let at = self.fields.iter().position(|(other, _)| other == name)?;
        Some(self.fields.remove(at).1)
    }
}

fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(Object)
    }
}

/// Visitor of the body's object.
struct Object;

/// Name of a field.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for Object {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let mut fields = Fields { fields: Vec::new(), are_many: false };
        while fields.fields.len() < MOST_FIELDS {
            let Some(Name(name)) = map.next_key()? else { return Ok(fields) };
            let raw = map.next_value()?;
            // The last of several fields of one name counts.
            let _ = fields.remove(&name);
            fields.fields.push((name, raw));
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            fields.are_many = true;
        }
        Ok(fields)
    }
}

impl fmt::Debug for Fields<'_> {
    /// Omits the values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.fields.iter().map(|(name, _)| name)).finish()
    }
}

/// Reads the text of the field `name`.
pub(crate) fn parse<'a, T: Deserialize<'a>>(name: &str, raw: &'a RawValue) -> Result<T> {
    serde_json::from_str(raw.get()).map_err(|error| refused(name, &error))
}

/// Reads a value that stands as text in the field `name`.
///
/// # Errors
///
/// Returns an error that names the field if the text is no JSON, or too large.
pub(crate) fn nested(name: &str, json: &str) -> Result<Value> {
    Bound::of(name).check(name, json)?;
    serde_json::from_str(json).map_err(|error| refused(name, &error))
}

/// Reads a value of the field `name`.
pub(crate) fn read<T: DeserializeOwned>(name: &str, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|error| refused(name, &error))
}

/// Returns the error of a field of another type. The position in the field would mislead.
fn refused(name: &str, error: &serde_json::Error) -> ApiError {
    ApiError::field(name, format!("`{name}`: {}", in_json_words(error)))
}

/// Words of the parser for a value that is nested too deep, and those for the client.
const TOO_DEEP: &str = "recursion limit exceeded";
const DEEPEST: &str = "it is nested deeper than 128 levels";

/// Returns what is wrong with a value, in the words of JSON in place of Rust's types.
pub(crate) fn in_json_words(error: &serde_json::Error) -> String {
    let error = error.to_string();
    let what = error.rsplit_once(" at line ").map_or(&*error, |(what, _)| what);
    if what == TOO_DEEP {
        return DEEPEST.to_owned();
    }
    let Some((found, expected)) = what.split_once(", expected ") else { return what.to_owned() };
    let found = if found.starts_with("invalid length") { "invalid type: list" } else { found };
    let first = expected.split([' ', ',']).next().unwrap_or_default();
    let expected = match first {
        "struct" | "internally" | "adjacently" | "enum" | "unit" => "an object",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0 on",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "tuple" => "a list",
        _ => match expected {
            "a map" => "an object",
            "a sequence" => "a list",
            "variant identifier" => "one of the known values",
            other => other,
        },
    };
    format!("{found}, expected {expected}")
}

/// Returns place and cause of a text that is no JSON.
fn why(text: &[u8], error: &serde_json::Error) -> String {
    let at = format!("at line {}, column {}", error.line(), error.column());
    if text.starts_with(b"\xef\xbb\xbf") {
        return format!("{at}: it begins with a byte order mark, which must be left out");
    }
    let error = error.to_string();
    let what = error.rsplit_once(" at line ").map_or(&*error, |(what, _)| what);
    match what {
        TOO_DEEP => format!("{at}: {DEEPEST}"),
        "lone leading surrogate in hex escape" | "unexpected end of hex escape" => {
            format!("{at}: an escape is half of a surrogate pair")
        }
        "expected value" => format!("{at}: a value is expected (`NaN` and `Infinity` are none)"),
        _ => format!("{at}: {what}"),
    }
}

/// Reads `metadata` as OpenAI's interface bounds it: 16 pairs of texts.
///
/// # Errors
///
/// Returns an error if there are more pairs, or if one of them is too long or no text.
pub(crate) fn metadata(fields: &mut Fields<'_>) -> Result<Option<serde_json::Map<String, Value>>> {
    let metadata: Option<serde_json::Map<String, Value>> = fields.take("metadata")?;
    let Some(metadata) = metadata else { return Ok(None) };
    let refused = |message: String| Err(ApiError::field("metadata", message));
    if metadata.len() > 16 {
        return refused("`metadata` must have 16 pairs at most".to_owned());
    }
    for (name, value) in &metadata {
        let Some(value) = value.as_str() else {
            let name: String = name.chars().take(64).collect();
            return refused(format!("`metadata`: the value of `{name}` must be a text"));
        };
        if name.chars().count() > 64 || value.chars().count() > 512 {
            return refused(
                "`metadata` must have names of 64 characters and values of 512 characters at most"
                    .to_owned(),
            );
        }
    }
    Ok(Some(metadata))
}

/// One text or a list of texts.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(crate) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Fields;
    use serde_json::json;

    fn refused(
        body: &str,
        read: impl FnOnce(&mut Fields<'_>) -> crate::error::Result<()>,
    ) -> String {
        let mut fields = match Fields::parse(body.as_bytes()) {
            Ok(fields) => fields,
            Err(error) => return error.message().to_owned(),
        };
        match read(&mut fields).and_then(|()| fields.finish()) {
            Ok(()) => "taken".to_owned(),
            Err(error) => error.message().to_owned(),
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let any = |_: &mut Fields<'_>| Ok(());
        assert_eq!(
            refused("{", any),
            "the body of the request is not valid JSON at line 1, column 1: EOF while parsing an object"
        );
        let of = |body: &str| refused(body, any).split_once(": ").unwrap().1.to_owned();
        assert_eq!(of("\u{feff}{}"), "it begins with a byte order mark, which must be left out");
        assert_eq!(of(r#"{"x": NaN}"#), "a value is expected (`NaN` and `Infinity` are none)");
        let deep = format!(r#"{{"x": {}{}}}"#, "[".repeat(200), "]".repeat(200));
        let value = |fields: &mut Fields<'_>| fields.take::<serde_json::Value>("x").map(drop);
        assert_eq!(refused(&deep, value), "`x`: it is nested deeper than 128 levels");
        assert_eq!(refused("[]", any), "the body of the request must be a JSON object");
        assert_eq!(refused(r#"{"x": 1}"#, any), "the field `x` is not supported");
        assert_eq!(refused(r#"{"x": null}"#, any), "taken");
        let need = |fields: &mut Fields<'_>| fields.need::<String>("model").map(drop);
        assert_eq!(refused("{}", need), "`model` is missing");
        assert!(refused(r#"{"model": 1}"#, need).starts_with("`model`: invalid type"));
        let only = |fields: &mut Fields<'_>| fields.only("suffix", &json!(""));
        assert_eq!(refused(r#"{"suffix": ""}"#, only), "taken");
        assert!(refused(r#"{"suffix": "x"}"#, only).starts_with("`suffix` is not supported"));
    }

    /// Returns a body whose field `name` has many small objects.
    fn wide(name: &str, objects: usize) -> String {
        format!("{{\"{name}\":[{}0]}}", r#"{"":0},"#.repeat(objects))
    }

    #[test]
    fn h1_a_field_is_refused_by_its_size_before_it_becomes_values() {
        for name in ["metadata", "tools", "text", "chat_template_kwargs", "user", "reasoning"] {
            let read = |fields: &mut Fields<'_>| fields.value(name).map(drop);
            let refused = refused(&wide(name, 100_000), read);
            assert!(refused.starts_with(&format!("`{name}` has 700")), "{refused}");
        }
        for name in ["messages", "input", "questions", "system"] {
            let read = |fields: &mut Fields<'_>| fields.value(name).map(drop);
            let refused = refused(&wide(name, 100_000), read);
            assert!(refused.ends_with("values: give at most 131072"), "{refused}");
        }
        let zeros = format!("{{\"tokens\":[{}0]}}", "0,".repeat(2 << 20));
        let read = |fields: &mut Fields<'_>| fields.take::<Vec<u32>>("tokens").map(drop);
        assert!(refused(&zeros, read).starts_with("`tokens` has"), "too many tokens");
    }

    #[test]
    fn h1_json_in_a_text_has_the_bounds_of_its_field() {
        let schema = format!("[{}0]", r#"{"":0},"#.repeat(30_000));
        let refused = super::nested("structured_outputs", &schema).unwrap_err();
        assert!(refused.message().contains("60002 values: give at most 16384"), "{refused}");
        assert!(super::nested("structured_outputs", r#"{"type":"object"}"#).is_ok());
    }

    #[test]
    fn h1_an_unknown_field_is_refused_by_its_name_whatever_its_size() {
        let any = |_: &mut Fields<'_>| Ok(());
        assert_eq!(refused(&wide("x", 100_000), any), "the field `x` is not supported");
        let deep = format!("{{\"x\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(refused(&deep, any), "the field `x` is not supported");
        let many: Vec<String> = (0..200_000).map(|n| format!("\"{n}\":0")).collect();
        let many = format!("{{{}}}", many.join(","));
        assert_eq!(refused(&many, any), "the body of the request has more than 128 fields");
    }

    #[test]
    fn the_last_of_two_fields_counts() {
        let mut fields = Fields::parse(br#"{"a": 1, "\u0061": 2}"#).unwrap();
        assert_eq!(fields.take::<u32>("a").unwrap(), Some(2));
        assert!(fields.finish().is_ok());
    }

    #[test]
    fn labels_and_metadata_are_short() {
        let label = |fields: &mut Fields<'_>| fields.label("user").map(drop);
        assert_eq!(refused(&json!({ "user": "\u{e9}".repeat(512) }).to_string(), label), "taken");
        for odd in [json!("x".repeat(513)), json!(7), json!({ "a": "b" })] {
            let body = json!({ "user": odd }).to_string();
            assert!(refused(&body, label).starts_with("`user`"), "{body}");
        }
        let metadata = |fields: &mut Fields<'_>| super::metadata(fields).map(drop);
        let pairs = |count: usize, length: usize| {
            let pair = |n: usize| (format!("{n:064}"), json!("x".repeat(length)));
            json!({ "metadata": (0..count).map(pair).collect::<serde_json::Map<_, _>>() })
        };
        assert_eq!(refused(&pairs(16, 512).to_string(), metadata), "taken");
        for odd in [pairs(17, 1), pairs(1, 513), json!({ "metadata": { "a": [] } })] {
            assert!(refused(&odd.to_string(), metadata).starts_with("`metadata`"), "{odd}");
        }
    }
}
