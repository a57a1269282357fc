//! Tools of a request: the functions that the model may call, and which of them it must call.
//!
//! Both of OpenAI's interfaces are read, chat completions and responses.

pub mod namespace;
mod schema;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;

use serde_json::{Map, Value, json};

pub use self::schema::{allowed_calls, response_format};
use crate::output::{Forced, LONGEST_NAME, is_name};

/// Maximum number of tools of a request.
pub const MOST_TOOLS: usize = 128;

/// Interface whose shape a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Chat completions: the function is in the field `function`.
    Chat,
    /// Responses: the fields of the function are beside `type`.
    Responses,
}

/// Function that the model may call.
#[derive(Clone, PartialEq)]
pub struct Tool {
    /// Name of the function as the worker sees it, unique within the request.
    pub name: String,
    /// Namespace of the function, whose name is a part of `name`.
    pub namespace: Option<String>,
    /// Description of the function for the model.
    pub description: Option<String>,
    /// JSON schema of the arguments, an object. A function without parameters has the schema of an
    /// empty object.
    pub parameters: Value,
    /// Flag `strict` as the client gave it.
    pub strict: Option<bool>,
}

impl fmt::Debug for Tool {
    /// Omits the user's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("strict", &self.strict).finish_non_exhaustive()
    }
}

/// Calls that a reply may or must have.
#[derive(Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// No calls.
    None,
    /// At least one call.
    Required,
    /// One call of this function, which is one of the request's tools.
    Named(String),
}

impl fmt::Debug for ToolChoice {
    /// Omits the name of the user's function.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "Auto",
            Self::None => "None",
            Self::Required => "Required",
            Self::Named(_) => "Named",
        })
    }
}

impl ToolChoice {
    /// Returns the shape to which [`response_format`] constrains the reply, if it does. `parallel`
    /// is the request's `parallel_tool_calls`.
    pub fn forced(&self, parallel: bool) -> Option<Forced> {
        match self {
            Self::Auto | Self::None => None,
            Self::Required if parallel => Some(Forced::Required),
            Self::Required => Some(Forced::RequiredOne),
            Self::Named(name) => Some(Forced::Named { name: name.clone() }),
        }
    }
}

/// Reason why the tools of a request are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// Path of the field, such as `tools[0].function.name`.
    pub param: String,
    /// Sentence for the client. It has no text of the request but names of fields and types.
    pub message: String,
}

type Result<T> = std::result::Result<T, Refused>;

/// Reads the request's field `tools`.
///
/// # Errors
///
/// Returns the first field that is not valid. A tool of another type than `function` is refused;
/// responses have namespaces of functions too.
pub fn parse_tools(shape: Shape, tools: Option<&Value>) -> Result<Vec<Tool>> {
    let tools = match tools {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(tools)) => tools,
        Some(_) => return refuse("tools", "must be a list of tools"),
    };
    let mut given: Vec<(String, Option<String>, &Value)> = Vec::with_capacity(tools.len());
    for (at, tool) in tools.iter().enumerate() {
        let path = format!("tools[{at}]");
        match namespace::fields(tool).filter(|_| shape == Shape::Responses) {
            Some(fields) => {
                let (name, functions) = namespace::functions(fields, &path)?;
                let in_namespace = |(path, tool)| (path, Some(name.clone()), tool);
                given.extend(functions.into_iter().map(in_namespace));
            }
            None => given.push((path, None, tool)),
        }
    }
    if given.len() > MOST_TOOLS {
        let many = format!("has {} tools: give at most {MOST_TOOLS}", given.len());
        return refuse("tools", &many);
    }
    let mut first: HashMap<String, String> = HashMap::new();
    let mut parsed = Vec::with_capacity(given.len());
    for (path, namespace, tool) in given {
        let (mut tool, param) = parse_tool(shape, tool, &path)?;
        if let Some(namespace) = namespace {
            tool.name = namespace::checked(&namespace, &tool.name, &param)?;
            tool.namespace = Some(namespace);
        }
        if let Some(other) = first.insert(tool.name.clone(), param.clone()) {
            let same = format!("is the same as `{other}`: give each function its own name");
            return refuse(&param, &same);
        }
        parsed.push(tool);
    }
    Ok(parsed)
}

/// Reads one tool. Returns it with the path of its name.
fn parse_tool(shape: Shape, tool: &Value, path: &str) -> Result<(Tool, String)> {
    let fields = object(tool, path)?;
    function_type(fields, path)?;
    let (function, path) = match shape {
        Shape::Chat => {
            only(fields, path, &["type", "function"])?;
            let path = format!("{path}.function");
            let function = object(fields.get("function").unwrap_or(&Value::Null), &path)?;
            only(function, &path, &["name", "description", "parameters", "strict"])?;
            (function, path)
        }
        Shape::Responses => {
            only(fields, path, &["type", "name", "description", "parameters", "strict"])?;
            (fields, path.to_owned())
        }
    };
    let (name, param) = function_name(function, &path)?;
    let description = match function.get("description") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => return refuse(&format!("{path}.description"), "must be a string"),
    };
    let strict = match function.get("strict") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(strict)) => Some(*strict),
        Some(_) => return refuse(&format!("{path}.strict"), "must be true or false"),
    };
    let parameters = parameters(function.get("parameters"), &format!("{path}.parameters"))?;
    Ok((Tool { name, namespace: None, description, parameters, strict }, param))
}

fn parameters(given: Option<&Value>, path: &str) -> Result<Value> {
    let schema = match given {
        None | Some(Value::Null) => {
            return Ok(json!({
                "type": "object", "properties": {}, "additionalProperties": false
            }));
        }
        Some(Value::Object(schema)) => schema,
        Some(_) => return refuse(path, "must be a JSON schema, which is an object"),
    };
    if schema.get("type").is_some_and(|kind| kind != "object") {
        let kind = "must be `object`, because arguments are an object";
        return refuse(&format!("{path}.type"), kind);
    }
    Ok(Value::Object(schema.clone()))
}

/// Reads the request's field `tool_choice`. Without tools it has no effect.
///
/// # Errors
///
/// Returns an error for a choice that is not served, or that no tool satisfies.
pub fn parse_choice(shape: Shape, choice: Option<&Value>, tools: &[Tool]) -> Result<ToolChoice> {
    let choice = match choice {
        None | Some(Value::Null) => ToolChoice::Auto,
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" => ToolChoice::Required,
            _ => {
                let known = "must be `auto`, `none`, `required` or an object that names a function";
                return refuse("tool_choice", known);
            }
        },
        Some(choice) => named(shape, choice, tools)?,
    };
    match choice {
        ToolChoice::Auto if tools.is_empty() => Ok(ToolChoice::None),
        ToolChoice::Required if tools.is_empty() => refuse(
            "tool_choice",
            "is `required`, but the request has no `tools`: give at least one",
        ),
        choice => Ok(choice),
    }
}

fn named(shape: Shape, choice: &Value, tools: &[Tool]) -> Result<ToolChoice> {
    let path = "tool_choice";
    let fields = object(choice, path)?;
    if fields.get("type").is_some_and(|kind| kind == "allowed_tools") {
        let narrow =
            "is `allowed_tools`, which is not served: give only the allowed tools in `tools`";
        return refuse("tool_choice.type", narrow);
    }
    function_type(fields, path)?;
    let (name, param) = match shape {
        Shape::Chat => {
            only(fields, path, &["type", "function"])?;
            let path = "tool_choice.function";
            let function = object(fields.get("function").unwrap_or(&Value::Null), path)?;
            only(function, path, &["name"])?;
            function_name(function, path)?
        }
        Shape::Responses => {
            only(fields, path, &["type", "name"])?;
            function_name(fields, path)?
        }
    };
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(ToolChoice::Named(name));
    }
    refuse(&param, "names none of the request's `tools`: name one of them")
}

/// Returns the tools in the shape that Hugging Face chat templates expect.
///
/// Templates may join the description with other text, so it is empty rather than absent.
pub fn for_template(tools: &[Tool]) -> Value {
    let tool = |tool: &Tool| {
        json!({
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description.as_deref().unwrap_or_default(),
                "parameters": tool.parameters,
            },
        })
    };
    tools.iter().map(tool).collect()
}

fn refuse<T>(param: &str, what: &str) -> Result<T> {
    Err(Refused { param: param.to_owned(), message: format!("`{param}` {what}") })
}

fn object<'a>(value: &'a Value, path: &str) -> Result<&'a Map<String, Value>> {
    match value {
        Value::Object(fields) => Ok(fields),
        Value::Null => refuse(path, "is missing: give an object"),
        _ => refuse(path, "must be an object"),
    }
}

/// Checks that all fields are known.
fn only(fields: &Map<String, Value>, path: &str, known: &[&str]) -> Result<()> {
    match fields.keys().find(|field| !known.contains(&field.as_str())) {
        None => Ok(()),
        Some(field) if is_name(field) => {
            refuse(&format!("{path}.{field}"), "is not known: leave it out")
        }
        Some(_) => {
            let known = known.join("`, `");
            refuse(path, &format!("has a field that is not known: give only `{known}`"))
        }
    }
}

/// Checks that the field `type` is `function`.
fn function_type(fields: &Map<String, Value>, path: &str) -> Result<()> {
    let path = format!("{path}.type");
    match fields.get("type") {
        Some(Value::String(kind)) if kind == "function" => Ok(()),
        Some(Value::String(kind)) if is_name(kind) => {
            refuse(&path, &format!("is `{kind}`, but only `function` tools are served"))
        }
        None | Some(Value::Null) => refuse(&path, "is missing: it must be `function`"),
        Some(_) => refuse(&path, "must be `function`: only `function` tools are served"),
    }
}

/// Returns the name of a function, and the path of the name.
fn function_name(fields: &Map<String, Value>, path: &str) -> Result<(String, String)> {
    with_name(fields, path, "function")
}

/// Returns the name of a thing, and the path of the name.
fn with_name(fields: &Map<String, Value>, path: &str, what: &str) -> Result<(String, String)> {
    let path = format!("{path}.name");
    match fields.get("name") {
        Some(Value::String(name)) if is_name(name) => Ok((name.clone(), path)),
        None | Some(Value::Null) => {
            refuse(&path, &format!("is missing: give the name of the {what}"))
        }
        Some(_) => {
            let rule = format!("must have 1 to {LONGEST_NAME} of the characters A-Z a-z 0-9 _ -");
            refuse(&path, &rule)
        }
    }
}
