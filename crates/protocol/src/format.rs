//! Constraint on a text reply as a whole: any text, JSON, or the match of a regular expression.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Format that constrains a reply token by token, in the shape of OpenAI's `response_format`.
///
/// OpenAI has no regular expressions. The variant `regex` is shaped like `json_schema` and means
/// the same as `regex` in vLLM and SGLang.
///
/// ```
/// use nsbridge_protocol::{ResponseFormat, TextInput};
///
/// let regex = r"\d{4}-\d{2}-\d{2}".to_owned();
/// let response_format = Some(ResponseFormat::Regex { regex });
/// let input = TextInput { response_format, ..TextInput::prompt("The day is ") };
/// let json = serde_json::to_value(&input).unwrap();
/// assert_eq!(json["response_format"]["type"], "regex");
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ResponseFormat {
    /// Any text, as without a format.
    Text {},
    /// Any JSON object.
    JsonObject {},
    /// JSON that conforms to a schema.
    JsonSchema {
        /// Schema with its name.
        json_schema: JsonSchema,
    },
    /// Text that the expression matches as a whole.
    Regex {
        /// Expression in the syntax of Rust's crate `regex`; it needs no anchors.
        regex: String,
    },
    /// Text with calls of tools, each of which conforms to a schema.
    ToolCalls {
        /// Format of the calls and of what stands beside them.
        tool_calls: ToolCallFormat,
    },
}

/// Format of the tool calls in a reply.
///
/// ```
/// use nsbridge_protocol::{ResponseFormat, ToolCallFormat};
/// use serde_json::json;
///
/// let call = json!({ "type": "object", "properties": { "name": { "const": "now" } } });
/// let tool_calls = ToolCallFormat::new("<tool_call>", "</tool_call>", call);
/// let json = serde_json::to_value(ResponseFormat::ToolCalls { tool_calls }).unwrap();
/// assert_eq!((&json["type"], &json["tool_calls"]["begin"]), (&json!("tool_calls"), &json!("<tool_call>")));
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ToolCallFormat {
    /// Text before each call, which no other text of the reply has. If it is empty, the reply is one call
    /// or a text that does not begin with `{`.
    pub begin: String,
    /// Text after each call.
    pub end: String,
    /// Schema of a call.
    pub schema: serde_json::Value,
    /// Schema of a reply without a call. Without it, any text may stand before, between and after calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<serde_json::Value>,
}

impl ToolCallFormat {
    /// Creates a format with any text beside the calls.
    pub fn new(
        begin: impl Into<String>,
        end: impl Into<String>,
        schema: serde_json::Value,
    ) -> Self {
        Self { begin: begin.into(), end: end.into(), schema, otherwise: None }
    }
}

impl fmt::Debug for ToolCallFormat {
    /// Omits the user's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCallFormat").finish_non_exhaustive()
    }
}

/// JSON schema in OpenAI's wrapper.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct JsonSchema {
    /// Name of the schema; has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Description of the schema; has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Schema itself. The properties of an object are generated in the schema's order.
    pub schema: serde_json::Value,
    /// OpenAI's strict flag; has no effect, because the reply always conforms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

impl JsonSchema {
    /// Creates a schema without name, description and flag.
    pub const fn new(schema: serde_json::Value) -> Self {
        Self { name: None, description: None, schema, strict: None }
    }
}

impl fmt::Debug for ResponseFormat {
    /// Omits the user's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text {} => "Text",
            Self::JsonObject {} => "JsonObject",
            Self::JsonSchema { .. } => "JsonSchema",
            Self::Regex { .. } => "Regex",
            Self::ToolCalls { .. } => "ToolCalls",
        })
    }
}

impl fmt::Debug for JsonSchema {
    /// Omits the user's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonSchema").field("strict", &self.strict).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::ResponseFormat;

    #[track_caller]
    fn check_same(json: &str) -> ResponseFormat {
        let format: ResponseFormat = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&format).unwrap(), json);
        format
    }

    #[test]
    fn formats_are_written_as_openai_writes_them() {
        assert_eq!(check_same(r#"{"type":"text"}"#), ResponseFormat::Text {});
        assert_eq!(check_same(r#"{"type":"json_object"}"#), ResponseFormat::JsonObject {});
        let regex = ResponseFormat::Regex { regex: "[a-z]+".into() };
        assert_eq!(check_same(r#"{"type":"regex","regex":"[a-z]+"}"#), regex);
        check_same(r#"{"type":"json_schema","json_schema":{"schema":{"type":"string"}}}"#);
        check_same(concat!(
            r#"{"type":"json_schema","json_schema":{"name":"n","description":"d","#,
            r#""schema":true,"strict":true}}"#,
        ));
    }

    #[test]
    fn the_properties_of_a_schema_stay_in_their_order() {
        check_same(r#"{"type":"json_schema","json_schema":{"schema":{"b":1,"c":2,"a":3}}}"#);
    }

    #[test]
    fn what_is_not_known_is_refused_and_not_dropped() {
        for json in [
            json!({ "type": "xml" }),
            json!({ "type": "text", "schema": {} }),
            json!({ "type": "json_object", "schema": {} }),
            json!({ "type": "regex", "regex": "a", "flags": "i" }),
            json!({ "type": "regex" }),
            json!({ "type": "json_schema", "json_schema": { "name": "n" } }),
            json!({ "type": "json_schema", "json_schema": { "schema": {}, "strikt": true } }),
            json!({ "schema": {} }),
        ] {
            assert!(serde_json::from_value::<ResponseFormat>(json.clone()).is_err(), "{json}");
        }
    }

    #[test]
    fn debug_shows_nothing_of_the_user() {
        let schema = json!({ "name": "canary", "schema": { "const": "canary" } });
        let schema: ResponseFormat =
            serde_json::from_value(json!({ "type": "json_schema", "json_schema": schema }))
                .unwrap();
        let ResponseFormat::JsonSchema { json_schema } = &schema else { panic!("{schema:?}") };
        let regex = ResponseFormat::Regex { regex: "canary".into() };
        let shown = format!("{schema:?} {json_schema:?} {regex:?}");
        assert!(!shown.contains("canary"), "{shown}");
    }
}
