//! Namespaces of the Responses API: groups of functions under a name.
//!
//! A worker sees plain functions, whose names begin with that of their namespace.

use serde_json::{Map, Value};

use super::{Result, refuse, with_name};
use crate::output::{LONGEST_NAME, is_name};

/// Text between the name of a namespace and that of its function.
const BETWEEN: &str = "__";

/// Returns the name of a function of a namespace, as the worker sees it.
pub fn joined(namespace: &str, name: &str) -> String {
    format!("{namespace}{BETWEEN}{name}")
}

/// Returns the name of a function without that of its namespace.
pub fn own_name<'a>(namespace: &str, joined: &'a str) -> &'a str {
    let own = joined.strip_prefix(namespace).and_then(|rest| rest.strip_prefix(BETWEEN));
    own.unwrap_or(joined)
}

/// Returns the fields of a tool that is a namespace.
pub(super) fn fields(tool: &Value) -> Option<&Map<String, Value>> {
    tool.as_object().filter(|fields| fields.get("type").is_some_and(|kind| kind == "namespace"))
}

/// Returns the name of a namespace, and its functions with their paths.
pub(super) fn functions<'a>(
    fields: &'a Map<String, Value>,
    path: &str,
) -> Result<(String, Vec<(String, &'a Value)>)> {
    super::only(fields, path, &["type", "name", "description", "tools"])?;
    let (name, _) = with_name(fields, path, "namespace")?;
    let path = format!("{path}.tools");
    let Some(Value::Array(functions)) = fields.get("tools") else {
        return refuse(&path, "must be a list of functions");
    };
    let functions = functions.iter().enumerate();
    let functions = functions.map(|(at, function)| (format!("{path}[{at}]"), function));
    Ok((name, functions.collect()))
}

/// Returns the joined name of a function, which must be a name too.
pub(super) fn checked(namespace: &str, name: &str, param: &str) -> Result<String> {
    let joined = joined(namespace, name);
    if !is_name(&joined) {
        let most = LONGEST_NAME - BETWEEN.len();
        let long = format!("and the name of its namespace must have at most {most} characters");
        return refuse(param, &long);
    }
    Ok(joined)
}

/// Joins the name of a call in the history of a conversation with its namespace.
pub fn of_call(namespace: Option<&str>, name: String) -> String {
    match namespace {
        Some(namespace) => joined(namespace, &name),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Shape, parse_tools};
    use super::own_name;

    fn namespace(name: &str, tools: &Value) -> Value {
        json!({ "type": "namespace", "name": name, "description": "d", "tools": tools })
    }

    #[test]
    fn functions_of_a_namespace_are_functions_with_a_longer_name() {
        let function = json!({ "type": "function", "name": "f" });
        let both = json!([function, namespace("n", &json!([function]))]);
        let tools = parse_tools(Shape::Responses, Some(&both)).unwrap();
        let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["f", "n__f"]);
        assert_eq!(tools[0].namespace, None);
        assert_eq!(tools[1].namespace.as_deref(), Some("n"));
        assert_eq!(own_name("n", "n__f"), "f");
    }

    #[track_caller]
    fn check_refused(shape: Shape, tool: &Value, param: &str) {
        let refused = parse_tools(shape, Some(&json!([tool]))).unwrap_err();
        assert_eq!(refused.param, param, "{refused}");
    }

    #[test]
    fn a_namespace_that_cannot_be_read_is_refused_by_its_path() {
        let function = json!({ "type": "function", "name": "f" });
        let shape = Shape::Responses;
        check_refused(Shape::Chat, &namespace("n", &json!([function])), "tools[0].type");
        check_refused(shape, &namespace("n n", &json!([function])), "tools[0].name");
        check_refused(shape, &namespace("n", &Value::Null), "tools[0].tools");
        check_refused(shape, &namespace("n", &json!([function, {}])), "tools[0].tools[1].type");
        let inner = namespace("m", &json!([function]));
        check_refused(shape, &namespace("n", &json!([inner])), "tools[0].tools[0].type");
        let long = namespace(&"n".repeat(62), &json!([function]));
        check_refused(shape, &long, "tools[0].tools[0].name");
        let twice = namespace("n", &json!([function, function]));
        check_refused(shape, &twice, "tools[0].tools[1].name");
    }
}
