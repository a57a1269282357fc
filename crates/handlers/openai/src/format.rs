//! Formats of replies, in the words of each kind of server.

use nsbridge_handler::{Error, ResponseFormat, Result, ToolCallFormat};
use serde_json::{Map, Value, json};

use crate::fields::not_by;
use crate::options::Flavor;

/// Adds the fields of a format to a request.
///
/// # Errors
///
/// Returns an error that names the format if such a server does not have it.
pub(crate) fn add_format(
    format: &ResponseFormat,
    flavor: Flavor,
    body: &mut Map<String, Value>,
) -> Result<()> {
    let (field, value) = match (flavor, format) {
        (_, ResponseFormat::Text {}) => return Ok(()),
        (Flavor::LlamaServer, ResponseFormat::JsonObject {}) => {
            ("json_schema", json!({ "type": "object" }))
        }
        (Flavor::LlamaServer, ResponseFormat::JsonSchema { json_schema }) => {
            ("json_schema", json_schema.schema.clone())
        }
        (Flavor::LlamaServer, _) => return Err(unknown(format, flavor)),
        (_, ResponseFormat::JsonObject {}) => ("response_format", json!({ "type": "json_object" })),
        (_, ResponseFormat::JsonSchema { json_schema }) => {
            // The servers want a name, which has no effect.
            let name = json_schema.name.as_deref().unwrap_or("reply");
            let schema = json!({ "name": name, "schema": json_schema.schema, "strict": true });
            ("response_format", json!({ "type": "json_schema", "json_schema": schema }))
        }
        (Flavor::Vllm, ResponseFormat::Regex { regex }) => {
            ("structured_outputs", json!({ "regex": regex }))
        }
        (Flavor::Sglang, ResponseFormat::Regex { regex }) => ("regex", json!(regex)),
        (Flavor::Vllm | Flavor::Sglang, ResponseFormat::ToolCalls { tool_calls }) => {
            ("response_format", json!({ "type": "structural_tag", "format": calls(tool_calls) }))
        }
        _ => return Err(unknown(format, flavor)),
    };
    body.insert(field.to_owned(), value);
    Ok(())
}

fn unknown(format: &ResponseFormat, flavor: Flavor) -> Error {
    let kind = match format {
        ResponseFormat::Regex { .. } => "response_format.regex",
        ResponseFormat::ToolCalls { .. } => "response_format.tool_calls",
        _ => "response_format",
    };
    not_by(kind, flavor)
}

/// Returns the structural tag of xgrammar for calls and what stands beside them.
fn calls(format: &ToolCallFormat) -> Value {
    let ToolCallFormat { begin, end, schema, otherwise, .. } = format;
    let json = |schema: &Value| json!({ "type": "json_schema", "json_schema": schema });
    let call = json(schema);
    let tag = json!({ "type": "tag", "begin": begin, "content": call, "end": end });
    let one_of = |a: Value, b: Value| json!({ "type": "or", "elements": [a, b] });
    match (otherwise, begin.is_empty()) {
        (None, true) => one_of(call, json!({ "type": "regex", "pattern": "[^{][\\s\\S]*" })),
        (Some(otherwise), true) => one_of(call, json(otherwise)),
        (None, false) => {
            json!({ "type": "triggered_tags", "triggers": [begin], "tags": [tag] })
        }
        (Some(otherwise), false) => {
            let tags = json!({ "type": "tags_with_separator", "tags": [tag], "separator": "",
                               "at_least_one": true });
            one_of(tags, json(otherwise))
        }
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::{ResponseFormat, Result, ToolCallFormat};
    use serde_json::{Map, Value, json};

    use super::add_format;
    use crate::options::Flavor;

    fn fields(flavor: Flavor, format: Value) -> Result<Value> {
        let format: ResponseFormat = serde_json::from_value(format).unwrap();
        let mut body = Map::new();
        add_format(&format, flavor, &mut body).map(|()| body.into())
    }

    #[test]
    fn a_schema_is_written_as_each_server_reads_it() {
        let schema = json!({ "type": "string" });
        let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
        let written = json!({ "name": "reply", "schema": schema, "strict": true });
        let openai =
            json!({ "response_format": { "type": "json_schema", "json_schema": written } });
        for flavor in [Flavor::Vllm, Flavor::Sglang, Flavor::Generic] {
            assert_eq!(fields(flavor, format.clone()).unwrap(), openai);
        }
        let llama = fields(Flavor::LlamaServer, format).unwrap();
        assert_eq!(llama, json!({ "json_schema": schema }));
        let any = fields(Flavor::LlamaServer, json!({ "type": "json_object" })).unwrap();
        assert_eq!(any, json!({ "json_schema": { "type": "object" } }));
    }

    #[test]
    fn a_format_that_a_server_lacks_is_refused_by_its_name() {
        let regex = json!({ "type": "regex", "regex": "a" });
        let vllm = fields(Flavor::Vllm, regex.clone()).unwrap();
        assert_eq!(vllm, json!({ "structured_outputs": { "regex": "a" } }));
        assert_eq!(fields(Flavor::Sglang, regex.clone()).unwrap(), json!({ "regex": "a" }));
        let format = ToolCallFormat::new("<t>", "</t>", json!({}));
        let calls = serde_json::to_value(ResponseFormat::ToolCalls { tool_calls: format }).unwrap();
        for flavor in [Flavor::LlamaServer, Flavor::Generic] {
            let error = fields(flavor, regex.clone()).unwrap_err().to_string();
            assert!(error.starts_with("`response_format.regex` cannot be used"), "{error}");
            let error = fields(flavor, calls.clone()).unwrap_err().to_string();
            assert!(error.starts_with("`response_format.tool_calls` cannot"), "{error}");
        }
    }

    #[test]
    fn calls_are_a_structural_tag() {
        let kind = |begin: &str, otherwise: Option<Value>| {
            let mut format = ToolCallFormat::new(begin, "</t>", json!({ "const": 1 }));
            format.otherwise = otherwise;
            let format = ResponseFormat::ToolCalls { tool_calls: format };
            let fields = fields(Flavor::Vllm, serde_json::to_value(format).unwrap()).unwrap();
            fields["response_format"]["format"].clone()
        };
        let plain = kind("<t>", None);
        assert_eq!(
            (&plain["type"], &plain["triggers"]),
            (&json!("triggered_tags"), &json!(["<t>"]))
        );
        let tag = &plain["tags"][0];
        assert_eq!((&tag["begin"], &tag["end"]), (&json!("<t>"), &json!("</t>")));
        let elements = |format: Value| {
            let elements = format["elements"].as_array().unwrap().clone();
            elements.iter().map(|element| element["type"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(elements(kind("", None)), ["json_schema", "regex"]);
        assert_eq!(elements(kind("", Some(json!({})))), ["json_schema", "json_schema"]);
        assert_eq!(elements(kind("<t>", Some(json!({})))), ["tags_with_separator", "json_schema"]);
    }
}
