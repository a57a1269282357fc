//! Response format that makes a reply consist of calls of the request's tools.
//!
//! A schema with references to parts of itself moves to the root's `$defs`, under the name of its
//! function. Those names are unique and need no escape in a JSON pointer. Each `#/..` within the
//! schema then becomes `#/$defs/name/..`.

use serde_json::{Map, Value, json};

use super::{Tool, ToolChoice};
use crate::output::ToolFormat;

/// Keywords whose value is an object of schemas by name.
const NAMED_SCHEMAS: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Keywords whose value is data and no schema.
const DATA: [&str; 5] = ["const", "enum", "default", "example", "examples"];

/// Keywords that say of which kind a value is.
const KINDS: [&str; 7] = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];

/// Returns the worker's `response_format` for a choice that forces calls. The parser of the reply
/// is that of [`ToolChoice::forced`]. `parallel` is the request's `parallel_tool_calls`.
pub fn response_format(tools: &[Tool], choice: &ToolChoice, parallel: bool) -> Option<Value> {
    let schema = match choice {
        ToolChoice::Auto | ToolChoice::None => return None,
        ToolChoice::Named(name) => arguments(tools.iter().find(|tool| tool.name == *name)?),
        ToolChoice::Required => calls(tools, "arguments", parallel),
    };
    Some(json!({ "type": "json_schema", "json_schema": { "schema": schema } }))
}

/// Returns the worker's `response_format` for replies that may have calls in the format of the model.
/// `otherwise` is the schema of a reply without calls. Returns `None` for a format whose calls no grammar
/// can follow.
pub fn allowed_calls(
    tools: &[Tool],
    format: &ToolFormat,
    otherwise: Option<&Value>,
) -> Option<Value> {
    let (begin, end, arguments) = match format {
        ToolFormat::Hermes => ("<tool_call>", "</tool_call>", "arguments"),
        ToolFormat::Llama3Json => ("", "", "parameters"),
        // Mistral's calls begin with a special token, which is no text.
        ToolFormat::None | ToolFormat::Mistral | ToolFormat::Forced(_) => return None,
    };
    let schema = calls(tools, arguments, false);
    let mut format = json!({ "begin": begin, "end": end, "schema": schema });
    if let Some(otherwise) = otherwise {
        format["otherwise"] = otherwise.clone();
    }
    Some(json!({ "type": "tool_calls", "tool_calls": format }))
}

/// Returns the schema of calls of any of the tools: of a list of them if there may be several.
fn calls(tools: &[Tool], arguments: &str, parallel: bool) -> Value {
    let mut definitions = Map::new();
    let calls: Vec<Value> =
        tools.iter().map(|tool| call(tool, arguments, &mut definitions)).collect();
    let mut root = Map::new();
    if let Some(dialect) = dialect(tools) {
        root.insert("$schema".to_owned(), dialect.clone());
    }
    let any = json!({ "anyOf": calls });
    if parallel {
        root.insert("type".to_owned(), "array".into());
        root.insert("minItems".to_owned(), 1.into());
        root.insert("items".to_owned(), any);
    } else if let Value::Object(any) = any {
        root.extend(any);
    }
    if !definitions.is_empty() {
        root.insert("$defs".to_owned(), definitions.into());
    }
    root.into()
}

/// Returns the schema of a call, whose arguments have this name. They are in the definitions if they refer
/// to themselves.
fn call(tool: &Tool, name: &str, definitions: &mut Map<String, Value>) -> Value {
    let mut arguments = arguments(tool);
    if let Value::Object(keywords) = &mut arguments {
        // An `$id` changes the root of references, and the dialect is that of the whole document.
        keywords.shift_remove("$id");
        keywords.shift_remove("$schema");
    }
    let root = format!("#/$defs/{}", tool.name);
    if move_references(&mut arguments, &root) {
        definitions.insert(tool.name.clone(), arguments);
        arguments = json!({ "$ref": root });
    }
    json!({
        "type": "object",
        "properties": { "name": { "const": tool.name }, name: arguments },
        "required": ["name", name],
        "additionalProperties": false,
    })
}

/// Returns the schema of a tool's arguments, which are an object.
fn arguments(tool: &Tool) -> Value {
    let mut schema = tool.parameters.clone();
    if let Value::Object(keywords) = &mut schema
        && !KINDS.iter().any(|kind| keywords.contains_key(*kind))
    {
        keywords.insert("type".to_owned(), "object".into());
    }
    schema
}

/// Returns the dialect that all tools name, if they agree.
fn dialect(tools: &[Tool]) -> Option<&Value> {
    let dialect = tools.first()?.parameters.get("$schema")?;
    tools.iter().all(|tool| tool.parameters.get("$schema") == Some(dialect)).then_some(dialect)
}

/// Rewrites the references of a schema to itself for its new place `root`. Returns true if it has
/// any.
fn move_references(schema: &mut Value, root: &str) -> bool {
    let mut moved = false;
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        let keywords = match schema {
            Value::Object(keywords) => keywords,
            Value::Array(schemas) => {
                open.extend(schemas);
                continue;
            }
            _ => continue,
        };
        for (keyword, value) in keywords.iter_mut() {
            let keyword = keyword.as_str();
            if NAMED_SCHEMAS.contains(&keyword)
                && let Value::Object(named) = value
            {
                open.extend(named.values_mut());
            } else if keyword == "$ref"
                && let Value::String(reference) = value
            {
                if let Some(to) = moved_reference(reference, root) {
                    *reference = to;
                    moved = true;
                }
            } else if !DATA.contains(&keyword) {
                open.push(value);
            }
        }
    }
    moved
}

/// Returns a reference for its new place, or `None` if it does not point into its own schema.
fn moved_reference(reference: &str, root: &str) -> Option<String> {
    let path = reference.strip_prefix('#')?;
    match path {
        "" | "/" => Some(root.to_owned()),
        _ => path.starts_with('/').then(|| format!("{root}{path}")),
    }
}
