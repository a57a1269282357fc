//! Requests of both shapes, and the schemas of forced calls.

use serde_json::{Value, json};

use super::{
    MOST_TOOLS, Shape, Tool, ToolChoice, allowed_calls, for_template, parse_choice, parse_tools,
    response_format,
};
use crate::output::{Forced, ToolFormat};

fn chat(function: &Value) -> Value {
    json!({ "type": "function", "function": function })
}

fn tools(parameters: &[(&str, Value)]) -> Vec<Tool> {
    let all = parameters
        .iter()
        .map(|(name, schema)| chat(&json!({ "name": name, "parameters": schema })))
        .collect();
    parse_tools(Shape::Chat, Some(&all)).unwrap()
}

#[test]
fn both_shapes_are_read() {
    let schema = json!({ "type": "object", "properties": { "b": {}, "a": {} } });
    let function = json!({ "name": "f", "description": "d", "parameters": schema, "strict": true });
    let mut flat = function.clone();
    flat["type"] = "function".into();
    let expected = Tool {
        name: "f".to_owned(),
        namespace: None,
        description: Some("d".to_owned()),
        parameters: schema,
        strict: Some(true),
    };
    let chat = parse_tools(Shape::Chat, Some(&json!([chat(&function)]))).unwrap();
    let responses = parse_tools(Shape::Responses, Some(&json!([flat]))).unwrap();
    assert!(chat == [expected.clone()] && responses == [expected]);
}

#[test]
fn absent_fields_have_defaults() {
    for function in [
        json!({ "name": "f" }),
        json!({ "name": "f", "description": null, "parameters": null, "strict": null }),
    ] {
        let all = parse_tools(Shape::Chat, Some(&json!([chat(&function)]))).unwrap();
        let empty = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        assert_eq!(all[0].parameters, empty);
        assert!(all[0].description.is_none() && all[0].strict.is_none());
    }
    for none in [None, Some(&Value::Null), Some(&json!([]))] {
        assert!(parse_tools(Shape::Chat, none).unwrap().is_empty());
    }
}

#[track_caller]
fn check_refused(shape: Shape, tools: &Value, param: &str, why: &str) {
    let refused = parse_tools(shape, Some(tools)).unwrap_err();
    assert_eq!(refused.param, param);
    let shown = refused.to_string();
    assert!(shown.starts_with(&format!("`{param}` ")) && shown.contains(why), "{shown}");
}

#[test]
fn tools_that_are_not_valid_are_refused() {
    let check = |function: Value, param: &str, why: &str| {
        let param = format!("tools[0].function{param}");
        check_refused(Shape::Chat, &json!([chat(&function)]), &param, why);
    };
    check(json!(null), "", "is missing");
    check(json!("f"), "", "must be an object");
    check(json!({}), ".name", "is missing");
    for name in [json!(""), json!("a b"), json!("é"), json!("a".repeat(65)), json!(1)] {
        check(json!({ "name": name }), ".name", "1 to 64");
    }
    check(json!({ "name": "f", "description": 1 }), ".description", "string");
    check(json!({ "name": "f", "strict": "yes" }), ".strict", "true or false");
    check(json!({ "name": "f", "parameters": [] }), ".parameters", "JSON schema");
    check(
        json!({ "name": "f", "parameters": { "type": "array" } }),
        ".parameters.type",
        "`object`",
    );
    check(json!({ "name": "f", "cache": 1 }), ".cache", "not known");
    check(json!({ "name": "f", "a\nb": 1 }), "", "give only `name`");

    let f = chat(&json!({ "name": "f" }));
    check_refused(Shape::Chat, &json!({}), "tools", "list");
    check_refused(Shape::Chat, &json!([1]), "tools[0]", "must be an object");
    check_refused(Shape::Chat, &json!([f, f]), "tools[1].function.name", "tools[0].function.name");
    check_refused(Shape::Chat, &json!([{ "function": {} }]), "tools[0].type", "is missing");
    let flat = json!({ "type": "function", "name": "f" });
    check_refused(Shape::Responses, &json!([flat, flat]), "tools[1].name", "`tools[0].name`");
    check_refused(Shape::Responses, &json!([f]), "tools[0].function", "not known");
    let many: Vec<_> =
        (0..=MOST_TOOLS).map(|n| chat(&json!({ "name": format!("f{n}") }))).collect();
    check_refused(Shape::Chat, &json!(many), "tools", "at most 128");
    assert_eq!(parse_tools(Shape::Chat, Some(&json!(many[1..]))).unwrap().len(), MOST_TOOLS);
}

#[test]
fn other_types_of_tools_are_refused_by_name() {
    for kind in ["web_search", "custom", "file_search", "mcp"] {
        for shape in [Shape::Chat, Shape::Responses] {
            let tool = json!([{ "type": kind, kind: {} }]);
            let why = format!("is `{kind}`, but only `function` tools are served");
            check_refused(shape, &tool, "tools[0].type", &why);
        }
    }
    let odd = json!([{ "type": "a\nb" }]);
    check_refused(Shape::Chat, &odd, "tools[0].type", "only `function` tools are served");
}

#[test]
fn choices_are_read_in_both_shapes() {
    let tools = tools(&[("f", json!({})), ("g", json!({}))]);
    for shape in [Shape::Chat, Shape::Responses] {
        let check = |choice: Option<Value>, expected: ToolChoice| {
            assert!(parse_choice(shape, choice.as_ref(), &tools).unwrap() == expected);
        };
        check(None, ToolChoice::Auto);
        check(Some(Value::Null), ToolChoice::Auto);
        check(Some(json!("auto")), ToolChoice::Auto);
        check(Some(json!("none")), ToolChoice::None);
        check(Some(json!("required")), ToolChoice::Required);
        let named = match shape {
            Shape::Chat => json!({ "type": "function", "function": { "name": "g" } }),
            Shape::Responses => json!({ "type": "function", "name": "g" }),
        };
        check(Some(named), ToolChoice::Named("g".to_owned()));
    }
    for choice in [None, Some(json!("auto")), Some(json!("none"))] {
        let without = parse_choice(Shape::Chat, choice.as_ref(), &[]).unwrap();
        assert_eq!(without, ToolChoice::None);
    }
}

#[test]
fn choices_that_cannot_be_followed_are_refused() {
    let f = tools(&[("f", json!({}))]);
    let check = |shape: Shape, choice: Value, tools: &[Tool], param: &str, why: &str| {
        let refused = parse_choice(shape, Some(&choice), tools).unwrap_err();
        assert_eq!(refused.param, param);
        assert!(refused.to_string().contains(why), "{refused}");
    };
    let g = json!({ "type": "function", "function": { "name": "g" } });
    check(Shape::Chat, g, &f, "tool_choice.function.name", "none of the request's `tools`");
    let g = json!({ "type": "function", "name": "g" });
    check(Shape::Responses, g, &f, "tool_choice.name", "none of the request's `tools`");
    check(Shape::Chat, json!("required"), &[], "tool_choice", "at least one");
    check(Shape::Chat, json!("any"), &f, "tool_choice", "`required`");
    check(Shape::Chat, json!(1), &f, "tool_choice", "must be an object");
    check(Shape::Chat, json!({ "type": "function" }), &f, "tool_choice.function", "is missing");
    for shape in [Shape::Chat, Shape::Responses] {
        let allowed = json!({ "type": "allowed_tools", "mode": "auto", "tools": [] });
        check(shape, allowed, &f, "tool_choice.type", "`allowed_tools`, which is not served");
        let search = json!({ "type": "web_search" });
        check(shape, search, &f, "tool_choice.type", "only `function` tools are served");
    }
}

#[test]
fn templates_get_the_chat_shape() {
    let listed = parse_tools(
        Shape::Responses,
        Some(&json!([
            { "type": "function", "name": "f", "description": "d", "strict": true,
              "parameters": { "type": "object", "properties": { "b": {}, "a": {} } } },
            { "type": "function", "name": "g" },
        ])),
    );
    assert_eq!(
        for_template(&listed.unwrap()).to_string(),
        concat!(
            r#"[{"type":"function","function":{"name":"f","description":"d","parameters":"#,
            r#"{"type":"object","properties":{"b":{},"a":{}}}}},"#,
            r#"{"type":"function","function":{"name":"g","description":"","parameters":"#,
            r#"{"type":"object","properties":{},"additionalProperties":false}}}]"#,
        )
    );
}

fn schema(tools: &[Tool], choice: &ToolChoice, parallel: bool) -> Value {
    let format = response_format(tools, choice, parallel).unwrap();
    assert_eq!(format["type"], "json_schema");
    format["json_schema"]["schema"].clone()
}

#[test]
fn only_a_choice_that_forces_calls_has_a_format() {
    let tools = tools(&[("f", json!({}))]);
    assert!(response_format(&tools, &ToolChoice::Auto, true).is_none());
    assert!(response_format(&tools, &ToolChoice::None, true).is_none());
    assert!(ToolChoice::Auto.forced(true).is_none() && ToolChoice::None.forced(true).is_none());
    assert_eq!(ToolChoice::Required.forced(true), Some(Forced::Required));
    assert_eq!(ToolChoice::Required.forced(false), Some(Forced::RequiredOne));
    let named = Forced::Named { name: "f".to_owned() };
    assert_eq!(ToolChoice::Named("f".to_owned()).forced(false), Some(named));
}

#[test]
fn a_named_function_has_the_schema_of_its_parameters() {
    let own = json!({ "$ref": "#/$defs/a", "$defs": { "a": { "type": "object" } } });
    let tools = tools(&[("f", own.clone()), ("g", json!({ "properties": {} }))]);
    assert_eq!(schema(&tools, &ToolChoice::Named("f".to_owned()), true), own);
    let typed = json!({ "properties": {}, "type": "object" });
    assert_eq!(schema(&tools, &ToolChoice::Named("g".to_owned()), true), typed);
}

#[test]
fn required_calls_have_the_schema_of_any_tool() {
    let f = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let tools = tools(&[("f", f.clone()), ("g", json!({}))]);
    let call = |name: &str, arguments: Value| {
        json!({
            "type": "object",
            "properties": { "name": { "const": name }, "arguments": arguments },
            "required": ["name", "arguments"],
            "additionalProperties": false,
        })
    };
    let any = json!([call("f", f), call("g", json!({ "type": "object" }))]);
    assert_eq!(schema(&tools, &ToolChoice::Required, false), json!({ "anyOf": any }));
    assert_eq!(
        schema(&tools, &ToolChoice::Required, true),
        json!({ "type": "array", "minItems": 1, "items": { "anyOf": any } })
    );
}

#[test]
fn calls_that_a_model_may_make_have_the_schema_of_any_tool_in_its_own_format() {
    let f = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let tools = tools(&[("f", f.clone())]);
    let format = |format, otherwise| {
        let format = allowed_calls(&tools, &format, otherwise)?;
        assert_eq!(format["type"], "tool_calls");
        Some(format["tool_calls"].clone())
    };
    let hermes = format(ToolFormat::Hermes, None).unwrap();
    assert_eq!((&hermes["begin"], &hermes["end"]), (&json!("<tool_call>"), &json!("</tool_call>")));
    assert_eq!(hermes["schema"]["anyOf"][0]["properties"]["arguments"], f);
    assert!(hermes.get("otherwise").is_none());
    let llama = format(ToolFormat::Llama3Json, Some(&f)).unwrap();
    assert_eq!((&llama["begin"], &llama["otherwise"]), (&json!(""), &f));
    assert_eq!(llama["schema"]["anyOf"][0]["required"], json!(["name", "parameters"]));
    assert_eq!(format(ToolFormat::Mistral, None), None);
    assert_eq!(format(ToolFormat::None, None), None);
}

#[test]
fn references_work_in_their_new_place() {
    let tree = |leaf: &str| {
        json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$id": "tree.json",
            "type": "object",
            "properties": {
                "node": { "$ref": "#/$defs/a~1node" },
                "again": { "$ref": "#/properties/node" },
                "old": { "$ref": "#/definitions/old" },
                "whole": { "$ref": "#" },
                "$ref": { "type": "string" },
                "default": { "$ref": "#/definitions/old" },
            },
            "additionalProperties": false,
            "$defs": { "a/node": {
                "type": "object",
                "properties": {
                    "leaf": { "type": leaf },
                    "next": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/a~1node" }] },
                },
                "additionalProperties": false,
            } },
            "definitions": { "old": { "enum": [1, { "$ref": "#/x" }] } },
        })
    };
    let tools = tools(&[("f", tree("integer")), ("g", tree("string"))]);
    for parallel in [true, false] {
        let schema = schema(&tools, &ToolChoice::Required, parallel);
        assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
        let validator = jsonschema::validator_for(&schema).unwrap();
        let check = |name: &str, arguments: Value, valid: bool| {
            let call = json!({ "name": name, "arguments": arguments });
            let reply = if parallel { json!([call, call]) } else { call };
            assert_eq!(validator.is_valid(&reply), valid, "{reply}");
        };
        for (name, leaf, other) in [("f", json!(1), json!("x")), ("g", json!("x"), json!(1))] {
            let nested = |leaf: &Value| json!({ "next": { "next": null, "leaf": leaf } });
            for place in ["node", "again"] {
                check(name, json!({ place: nested(&leaf) }), true);
                check(name, json!({ place: nested(&other) }), false);
            }
            check(name, json!({ "whole": { "node": nested(&leaf) } }), true);
            check(name, json!({ "whole": { "node": nested(&other) } }), false);
            check(name, json!({ "old": 1, "default": { "$ref": "#/x" }, "$ref": "r" }), true);
            check(name, json!({ "old": 2 }), false);
            check(name, json!({ "default": 2 }), false);
            check(name, json!({ "$ref": 1 }), false);
        }
        check("h", json!({}), false);
        assert!(!validator.is_valid(&json!([])));
    }
}

#[test]
fn debug_shows_nothing_of_the_tools() {
    let canary = tools(&[("canary", json!({ "title": "canary" }))]);
    let shown = format!("{canary:?} {:?}", ToolChoice::Named("canary".to_owned()));
    assert!(!shown.contains("canary"), "{shown}");
}
