//! Documents, and lines that are refused.

use serde_json::{Value as Json, json};

use super::documents;

#[track_caller]
fn check(text: &str, expected: &Json) {
    let read = documents(text).unwrap();
    assert_eq!(
        read.iter().map(super::Node::to_json).collect::<Json>(),
        json!([expected]),
        "{text}"
    );
}

#[test]
fn mappings_lists_and_scalars_are_read() {
    check(
        "a: 1\nb-c: x y  # z\n\n# w\nd: 'it''s'\ne: \"\\u00e9\\n\"\n",
        &json!({
            "a": 1, "b-c": "x y", "d": "it's", "e": "é\n"
        }),
    );
    check(
        "a:\n  b:\n    c: true\n  d: 0.5\ne:\n- 1\n- x: 2\n  y: no\n-\n  - z\n",
        &json!({
            "a": { "b": { "c": true }, "d": 0.5 }, "e": [1, { "x": 2, "y": false }, ["z"]]
        }),
    );
    check("- - a\n  - b\n- c: d\n", &json!([["a", "b"], { "c": "d" }]));
    check(
        "a:\nb: ~\nc: 8k\nd: 1e-3\ne: http://x:1\n\"f g\": -1\n",
        &json!({
            "a": null, "b": null, "c": "8k", "d": "1e-3", "e": "http://x:1", "f g": -1
        }),
    );
}

#[test]
fn lists_and_objects_in_brackets_are_read_over_several_lines() {
    check(
        "a: [x, \"y, z\", 1]\nb: {c: d, \"e\":[{}, []], f: }\n",
        &json!({
            "a": ["x", "y, z", 1], "b": { "c": "d", "e": [{}, []], "f": null }
        }),
    );
    check("a: [\n  x,  # y\n  {\"b\": 1.5},\n]\n", &json!({ "a": ["x", { "b": 1.5 }] }));
    check("{\"a\": {\"b\": null, \"c\": \"d: e\"}}", &json!({ "a": { "b": null, "c": "d: e" } }));
    check("args: [\"--x={\\\"a\\\": 1}\", --y]", &json!({ "args": ["--x={\"a\": 1}", "--y"] }));
}

#[test]
fn blocks_of_text_are_read() {
    check("a: |\n  x\n    y\n\n  z\nb: 1\n", &json!({ "a": "x\n  y\n\nz\n", "b": 1 }));
    check("- >-\n  x\n  y\n\n  z\n- |-\n  w \\\n  v\n", &json!(["x y\nz", "w \\\nv"]));
}

#[test]
fn each_document_of_a_file_is_read() {
    let read = documents("# a\n---\na: 1\n---\n\n--- {b: 2}\n...\n").unwrap();
    assert_eq!(
        read.iter().map(super::Node::to_json).collect::<Vec<_>>(),
        [json!({ "a": 1 }), json!({ "b": 2 })]
    );
}

#[test]
fn what_is_not_read_is_refused_by_its_line() {
    for (text, expected) in [
        ("a: 1\nb: &c d\n", "line 2 has an anchor"),
        ("a: *c\n", "line 1 has an anchor, an alias"),
        ("a: !!str 1\n", "line 1 has an anchor, an alias, a tag"),
        ("a: b\n  c\n", "line 2 continues the value"),
        ("a:\n  b: 1\n c: 2\n", "line 3 belongs to no line before it"),
        ("a:\n\tb: 1\n", "line 2 is indented by a tab"),
        ("a: 1\nb\n", "line 2 is neither `key: value` nor `- item`"),
        ("a: 1\na: 2\n", "line 2 has the key of an earlier line"),
        ("a: \"b\n", "line 1 opens a quotation"),
        ("a: \"b\" c\n", "line 1 has a text behind a quotation"),
        ("a: [b\n", "line 1 opens a bracket"),
        ("a: [b] c\n", "line 1 has a text behind a closing bracket"),
        ("a: [b c: d]\n", "line 1 has no comma"),
        ("a: \"\\q\"\n", "line 1 has an escape"),
        ("a: |2\n  b\n", "line 1 has an indicator"),
        ("---\na: 1\n---\nb\n\nc\n", "line 6 belongs to no line before it"),
    ] {
        let said = documents(text).unwrap_err();
        assert!(said.starts_with(expected), "{text}: {said}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(documents(&deep), Err("line 1 lies too deep".to_owned()));
    let deep: String = (0..200).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    assert!(documents(&deep).unwrap_err().ends_with("lies too deep"));
}
