//! Calls, text around them, and text that only begins like a call.

use crate::output::ToolFormat;
use crate::output::json_calls::{DEEPEST, MAX_CALL_BYTES};
use crate::output::testing::check;

#[track_caller]
fn check_hermes(text: &str, content: &str, calls: &[(&str, &str)]) {
    check(&ToolFormat::Hermes, text, content, calls);
}

/// Checks the arguments of a call whose object has these fields.
#[track_caller]
fn check_fields(fields: &str, arguments: &str) {
    check_hermes(&format!("<tool_call>{{{fields}}}</tool_call>"), "", &[("f", arguments)]);
}

#[track_caller]
fn check_no_call(text: &str) {
    check_hermes(text, text, &[]);
}

#[test]
fn a_call_is_told_without_the_whitespace_around_it() {
    check_hermes(
        "I ask. \n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":  [1, \"é\"]}}\n</tool_call>\n",
        "I ask.",
        &[("f", "{\"a\":  [1, \"é\"]}")],
    );
    check_hermes(
        "A <tool_call>{\"name\": \"f\"}</tool_call> B <tool_call>{\"name\": \"g\"} </tool_call>\n C\n",
        "ABC\n",
        &[("f", "{}"), ("g", "{}")],
    );
}

#[test]
fn arguments_have_several_forms() {
    check_fields(r#""name": "f", "arguments": {"a": 1}"#, r#"{"a": 1}"#);
    check_fields(r#""name": "f", "parameters": {"a": 1}"#, r#"{"a": 1}"#);
    check_fields(r#""arguments": {"a": 1}, "name": "f""#, r#"{"a": 1}"#);
    check_fields(r#""arguments": -1.5 , "name": "f""#, "-1.5");
    check_fields(r#""name": "f", "arguments": 12"#, "12");
    check_fields(r#""name": "f", "arguments": "{\"a\": \"\\n\u00e9\"}""#, "{\"a\": \"\\né\"}");
    check_fields(r#""arguments": "{}", "name": "f""#, "{}");
}

#[test]
fn missing_arguments_are_an_empty_object() {
    check_fields(r#""name": "f""#, "{}");
    check_fields(r#""name": "f", "arguments": null"#, "{}");
    check_fields(r#""arguments": null, "name": "f""#, "{}");
    check_fields(r#""name": "f", "arguments": """#, "{}");
}

#[test]
fn other_fields_and_repeated_fields_are_ignored() {
    check_fields(r#""id": 7, "name": "f", "x": [{}, "}"], "arguments": {}, "y": 1"#, "{}");
    check_fields(
        r#""name": "f", "name": "g", "arguments": {"a": 1}, "parameters": {}"#,
        r#"{"a": 1}"#,
    );
    check_fields(r#""n\u0061me": "\u0066", "arguments": {}"#, "{}");
}

#[test]
fn a_closing_tag_may_be_missing() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}";
    check_hermes(call, "", &[("f", "{}")]);
    check_hermes(&format!("{call}\n{call}"), "", &[("f", "{}"), ("f", "{}")]);
    check_hermes(&format!("{call} </tool_x {call}"), "</tool_x", &[("f", "{}"), ("f", "{}")]);
    check_hermes(&format!("{call}\n</tool_"), "</tool_", &[("f", "{}")]);
}

#[test]
fn a_text_that_only_begins_like_a_call_is_content() {
    for text in [
        "<tool_call>",
        " <tool_call> \n",
        "a <tool_call> b </tool_call> c\n",
        "<tool_call>{}</tool_call>",
        "<tool_call>[{\"name\": \"f\"}]</tool_call>",
        "<tool_call>{\"nome\": \"f\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": }</tool_call>",
        "<tool_call>{\"name\": \"f\",, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"x\": tru}</tool_call>",
        "<tool_call>{\"name\": \"f\"",
        "<tool_call>{\"arguments\": {\"a\": 1}, ",
        "<tool_call>{\"arguments\": {\"a\": 01}}",
        "</tool_call>",
        "< tool_call>",
    ] {
        check_no_call(text);
    }
}

#[test]
fn a_call_after_a_broken_one_is_a_call() {
    let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
    check_hermes(&format!("<tool_call>\n{call}"), "<tool_call>\n", &[("f", "{}")]);
    check_hermes(&format!("<tool_call>{{\"name\"<{call}"), "<tool_call>{\"name\"<", &[("f", "{}")]);
}

#[test]
fn the_text_after_broken_arguments_is_content() {
    check_hermes(
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b\"c\"}}</tool_call>",
        "c\"}}</tool_call>",
        &[("f", "{\"a\": \"b\"")],
    );
    check_hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}]", "]", &[("f", "{}")]);
    check_hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a", "", &[("f", "{\"a")]);
}

#[test]
fn a_call_that_is_nested_too_deeply_is_content() {
    let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let call = |depth| format!("<tool_call>{{\"arguments\": {}, \"name\": \"f\"}}", nested(depth));
    check_hermes(&call(DEEPEST - 1), "", &[("f", &nested(DEEPEST - 1))]);
    check_no_call(&call(DEEPEST));
    check_no_call(&call(100_000));
}

#[test]
fn a_call_that_is_too_long_is_content() {
    let frame = "{\"arguments\": \"\", \"name\": \"f\"}";
    let fits = "a".repeat(MAX_CALL_BYTES - frame.len());
    check_hermes(
        &format!("<tool_call>{{\"arguments\": \"{fits}\", \"name\": \"f\"}}"),
        "",
        &[("f", &fits)],
    );
    check_no_call(&format!("<tool_call>{{\"arguments\": \"{fits}a\", \"name\": \"f\"}}"));
    check_no_call(&format!("<tool_call>{}", " ".repeat(MAX_CALL_BYTES + 1)));
}
