//! Tools and their choice in the shape of Anthropic's interface.

use nsbridge_reply_text::tools::{MOST_TOOLS, Tool, ToolChoice};
use nsbridge_reply_text::{LONGEST_NAME, is_name};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{ApiError, Result};
use crate::fields::{Fields, read};

/// Tool of the request. Tools of other types have no schema that a model without them could read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    name: String,
    description: Option<String>,
    input_schema: Map<String, Value>,
    strict: Option<bool>,
}

/// Fields of a tool that change no reply here: they concern caches, the cutting of events, the search
/// for tools and calls by code. Examples of inputs are hints that no template shows.
const HINTS: [&str; 5] = [
    "allowed_callers",
    "cache_control",
    "defer_loading",
    "eager_input_streaming",
    "input_examples",
];

/// Field `tool_choice`.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Choice {
    Auto {
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    Any {
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    Tool {
        name: String,
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    None {},
}

/// Reads `tools`.
///
/// # Errors
///
/// Returns an error that names the first invalid tool. Tools of another type than `custom` are
/// refused.
pub(super) fn tools(fields: &mut Fields<'_>) -> Result<Vec<Tool>> {
    let values: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    if values.len() > MOST_TOOLS {
        let message = format!("`tools` has {} tools: give at most {MOST_TOOLS}", values.len());
        return Err(ApiError::field("tools", message));
    }
    let mut tools: Vec<Tool> = Vec::with_capacity(values.len());
    for (index, value) in values.into_iter().enumerate() {
        let at = format!("tools[{index}]");
        let tool = tool(&at, value)?;
        if tools.iter().any(|other| other.name == tool.name) {
            let message = format!("`{at}.name` is the name of an earlier tool: give each its own");
            return Err(ApiError::field(&format!("{at}.name"), message));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn tool(at: &str, mut value: Value) -> Result<Tool> {
    if let Some(fields) = value.as_object_mut() {
        match fields.remove("type").unwrap_or_default() {
            Value::Null => {}
            kind if kind == "custom" => {}
            kind => {
                let kind: String = kind.as_str().unwrap_or("?").chars().take(40).collect();
                let message = format!(
                    "`{at}.type` is `{kind}`, but only `custom` tools are served: describe the \
                     tool by `name`, `description` and `input_schema`"
                );
                return Err(ApiError::field(&format!("{at}.type"), message));
            }
        }
        fields.retain(|name, value| !HINTS.contains(&&**name) && !value.is_null());
    }
    let Given { name, description, input_schema, strict } = read(at, value)?;
    if !is_name(&name) {
        let message =
            format!("`{at}.name` must have 1 to {LONGEST_NAME} of the characters A-Z a-z 0-9 _ -");
        return Err(ApiError::field(&format!("{at}.name"), message));
    }
    if input_schema.get("type").is_some_and(|kind| kind != "object") {
        let message =
            format!("`{at}.input_schema.type` must be `object`, because an input is an object");
        return Err(ApiError::field(&format!("{at}.input_schema.type"), message));
    }
    Ok(Tool { name, namespace: None, description, parameters: Value::Object(input_schema), strict })
}

/// Reads `tool_choice`. Returns it with a flag that is true if the reply may have several calls.
///
/// # Errors
///
/// Returns an error if no tool satisfies the choice.
pub(super) fn choice(fields: &mut Fields<'_>, tools: &[Tool]) -> Result<(ToolChoice, bool)> {
    let auto = Choice::Auto { disable_parallel_tool_use: false };
    let (choice, single) = match fields.take("tool_choice")?.unwrap_or(auto) {
        Choice::Auto { disable_parallel_tool_use: single } => (ToolChoice::Auto, single),
        Choice::Any { disable_parallel_tool_use: single } => (ToolChoice::Required, single),
        Choice::Tool { name, disable_parallel_tool_use: single } => {
            (ToolChoice::Named(name), single)
        }
        Choice::None {} => (ToolChoice::None, false),
    };
    match &choice {
        ToolChoice::Required if tools.is_empty() => Err(ApiError::field(
            "tool_choice",
            "`tool_choice` is `any`, but the request has no `tools`: give at least one",
        )),
        ToolChoice::Named(name) if tools.iter().all(|tool| tool.name != *name) => {
            Err(ApiError::field(
                "tool_choice.name",
                "`tool_choice.name` names none of the request's `tools`: name one of them",
            ))
        }
        _ => Ok((choice, !single)),
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_reply_text::tools::{Tool, ToolChoice};
    use serde_json::{Value, json};

    use super::{Fields, choice, tools};
    use crate::error::Result;

    fn fields(body: &Value) -> Fields<'static> {
        Fields::parse(body.to_string().leak().as_bytes()).unwrap()
    }

    fn read(given: &Value) -> Result<Vec<Tool>> {
        tools(&mut fields(&json!({ "tools": given })))
    }

    #[track_caller]
    fn check_refused(given: &Value, param: &str, says: &str) {
        let error = read(given).unwrap_err();
        assert_eq!(error.json()["error"]["param"], param);
        assert!(error.message().contains(says), "{}", error.message());
    }

    #[test]
    fn a_custom_tool_is_read_and_the_marks_of_caches_are_dropped() {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
        let given = json!([
            { "name": "f", "input_schema": schema, "cache_control": { "type": "ephemeral" } },
            { "type": "custom", "name": "g", "description": "G.", "input_schema": {},
              "strict": true, "eager_input_streaming": false, "defer_loading": true,
              "allowed_callers": ["direct"], "input_examples": [{ "a": "b" }] }
        ]);
        let read = read(&given).unwrap();
        assert_eq!((read[0].name.as_str(), &read[0].parameters), ("f", &schema));
        assert_eq!((read[1].description.as_deref(), read[1].strict), (Some("G."), Some(true)));
    }

    #[test]
    fn a_tool_that_cannot_be_served_is_named() {
        let search = json!([{ "type": "web_search_20250305", "name": "web_search" }]);
        check_refused(&search, "tools[0].type", "`web_search_20250305`");
        check_refused(&json!([{ "name": "f" }]), "tools[0]", "input_schema");
        check_refused(&json!([{ "name": "a b", "input_schema": {} }]), "tools[0].name", "1 to 64");
        let list = json!([{ "name": "f", "input_schema": { "type": "array" } }]);
        check_refused(&list, "tools[0].input_schema.type", "`object`");
        let one = json!({ "name": "f", "input_schema": {} });
        check_refused(&json!([one, one]), "tools[1].name", "earlier tool");
        let odd = json!([{ "name": "f", "input_schema": {}, "typo": true }]);
        check_refused(&odd, "tools[0]", "`typo`");
        check_refused(&json!(vec![one; 129]), "tools", "at most 128");
    }

    #[test]
    fn each_choice_is_read() {
        let tools = read(&json!([{ "name": "f", "input_schema": {} }])).unwrap();
        let read = |given: Value| choice(&mut fields(&json!({ "tool_choice": given })), &tools);
        assert_eq!(read(Value::Null).unwrap(), (ToolChoice::Auto, true));
        assert_eq!(read(json!({ "type": "none" })).unwrap(), (ToolChoice::None, true));
        let one = json!({ "type": "any", "disable_parallel_tool_use": true });
        assert_eq!(read(one).unwrap(), (ToolChoice::Required, false));
        let named = |name: &str| read(json!({ "type": "tool", "name": name }));
        assert_eq!(named("f").unwrap(), (ToolChoice::Named("f".to_owned()), true));
        assert!(named("g").unwrap_err().message().contains("names none"));
        assert!(read(json!({ "type": "all" })).is_err());
        let mut any = fields(&json!({ "tool_choice": { "type": "any" } }));
        assert!(choice(&mut any, &[]).unwrap_err().message().contains("no `tools`"));
    }
}
