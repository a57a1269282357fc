//! Tests of enforceable schemas.

use serde_json::{Value, json};

use super::Enforceable;

#[track_caller]
fn check(given: &Value, schema: &Value, left_out: &[&str]) {
    let of = Enforceable::of(given);
    assert_eq!(of.schema, *schema);
    assert_eq!(of.left_out.into_iter().collect::<Vec<_>>(), left_out);
}

#[test]
fn annotations_are_dropped_and_properties_of_their_names_are_not() {
    check(
        &json!({
            "title": "T", "description": "d".repeat(70_000), "type": "object", "x-order": 1,
            "properties": {
                "title": { "type": "string", "format": "binary", "default": "" },
                "at": { "type": "string", "format": "date-time", "examples": [] }
            }
        }),
        &json!({
            "type": "object",
            "properties": {
                "title": { "type": "string" }, "at": { "type": "string", "format": "date-time" }
            }
        }),
        &[],
    );
}

#[test]
fn what_restricts_nothing_is_not_told() {
    let nothing = json!({
        "type": "object", "propertyNames": { "type": "string" }, "uniqueItems": false,
        "additionalProperties": { "type": "integer" }, "minProperties": 0, "dependentRequired": {}
    });
    let same = json!({ "type": "object", "additionalProperties": { "type": "integer" } });
    check(&nothing, &same, &[]);
    let given = json!({ "type": "object", "properties": {}, "unevaluatedProperties": false });
    let same = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    check(&given, &same, &[]);
}

#[test]
fn names_that_are_listed_are_properties() {
    check(
        &json!({
            "propertyNames": { "type": "string", "enum": ["a", "b"] },
            "additionalProperties": { "type": "integer" }, "required": ["a"]
        }),
        &json!({
            "properties": { "a": { "type": "integer" }, "b": { "type": "integer" } },
            "additionalProperties": false, "required": ["a"]
        }),
        &[],
    );
    check(
        &json!({ "propertyNames": { "pattern": "^[a-z]+$" } }),
        &json!({ "patternProperties": { "^[a-z]+$": true }, "additionalProperties": false }),
        &[],
    );
    let odd = json!({ "properties": { "a": {} }, "propertyNames": { "maxLength": 3 } });
    check(&odd, &json!({ "properties": { "a": {} } }), &["propertyNames"]);
}

#[test]
fn what_no_grammar_enforces_is_left_out_and_told() {
    check(
        &json!({
            "type": "object",
            "properties": {
                "set": { "type": "array", "uniqueItems": true, "contains": { "const": 1 }, "minContains": 2 },
                "word": { "type": "string", "pattern": "^(?=a)\\w+$" },
                "border": { "type": "string", "pattern": "\\bfoo\\b" },
                "plain": { "type": "string", "pattern": "^[a-z]+$" }
            },
            "if": { "required": ["set"] }, "then": { "required": ["word"] }, "else": {},
            "dependentRequired": { "set": ["word"] }, "minProperties": 1,
            "allOf": [{ "unevaluatedProperties": false }, { "$ref": "https://a/b" }]
        }),
        &json!({
            "type": "object",
            "properties": {
                "set": { "type": "array" }, "word": { "type": "string" }, "border": { "type": "string" },
                "plain": { "type": "string", "pattern": "^[a-z]+$" }
            },
            "allOf": [{ "additionalProperties": false }, {}]
        }),
        &["$ref", "contains", "dependentRequired", "if", "minProperties", "pattern", "uniqueItems"],
    );
}

#[test]
fn schemas_that_exclude_each_other_are_as_good_as_any_of_them() {
    let kinds = json!([{ "type": "string" }, { "type": "integer" }]);
    check(&json!({ "oneOf": kinds }), &json!({ "anyOf": kinds }), &[]);
    let tagged = |tag: &str| json!({ "type": "object", "properties": { "kind": { "const": tag } }, "required": ["kind"] });
    let tagged = json!([tagged("a"), tagged("b")]);
    check(&json!({ "oneOf": tagged }), &json!({ "anyOf": tagged }), &[]);
    let numbers = json!([{ "type": "number" }, { "type": "integer" }]);
    check(&json!({ "oneOf": numbers }), &json!({ "anyOf": numbers }), &["oneOf"]);
    let required = json!([{ "required": ["a"] }, { "required": ["b"] }]);
    check(
        &json!({ "anyOf": kinds, "oneOf": required }),
        &json!({ "anyOf": kinds, "allOf": [{ "anyOf": required }] }),
        &["oneOf"],
    );
}

#[test]
fn kinds_that_a_property_tells_apart_may_be_references() {
    let kind = |name: &str| {
        json!({
            "type": "object", "properties": { "kind": { "const": name } }, "required": ["kind"]
        })
    };
    let references = json!([{ "$ref": "#/$defs/A" }, { "$ref": "#/$defs/B" }]);
    let schema = |choice: &str, b: &str| {
        json!({
            "properties": { "pet": { choice: references } }, "$defs": { "A": kind("a"), "B": kind(b) }
        })
    };
    check(&schema("oneOf", "b"), &schema("anyOf", "b"), &[]);
    check(&schema("oneOf", "a"), &schema("anyOf", "a"), &["oneOf"]);
}

#[test]
fn openapis_own_keywords_are_rewritten() {
    check(
        &json!({ "type": "integer", "nullable": true, "minimum": 1, "exclusiveMinimum": true }),
        &json!({ "type": ["integer", "null"], "exclusiveMinimum": 1 }),
        &[],
    );
    let colors = json!({ "type": "string", "enum": ["a"], "nullable": true });
    check(&colors, &json!({ "type": ["string", "null"], "enum": ["a", null] }), &[]);
}

#[test]
fn references_with_escapes_have_targets_without_them() {
    let given = json!({
        "$ref": "#/$defs/x~1y",
        "$defs": {
            "x/y": { "type": "object", "properties": { "next": { "$ref": "#/$defs/a%20b" } } },
            "a b": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/x~1y" }] }
        }
    });
    let of = Enforceable::of(&given);
    assert!(of.left_out.is_empty());
    assert_eq!(of.schema["$ref"], "#/$defs/nsbridge-0");
    let definitions = &of.schema["$defs"];
    let next = &definitions["nsbridge-0"]["properties"]["next"];
    assert_eq!(next, &json!({ "$ref": "#/$defs/nsbridge-1" }));
    assert_eq!(definitions["nsbridge-1"]["anyOf"][1]["$ref"], "#/$defs/nsbridge-0");
}

#[test]
fn targets_outside_of_the_definitions_become_definitions() {
    let pet = json!({ "type": "string", "format": "password" });
    check(
        &json!({ "$ref": "#/components/schemas/Pet", "components": { "schemas": { "Pet": pet } } }),
        &json!({ "$ref": "#/$defs/nsbridge-0", "$defs": { "nsbridge-0": { "type": "string" } } }),
        &[],
    );
    check(
        &json!({ "$ref": "#/$defs/Old/Name", "$defs": { "Old/Name": { "type": "null" } } }),
        &json!({
            "$ref": "#/$defs/nsbridge-0",
            "$defs": { "Old/Name": { "type": "null" }, "nsbridge-0": { "type": "null" } },
        }),
        &[],
    );
    check(
        &json!({ "$ref": "#/definitions/." }),
        &json!({ "$ref": "#/$defs/nsbridge-0", "$defs": { "nsbridge-0": true } }),
        &["$ref"],
    );
}

#[test]
fn a_kind_of_a_base_does_not_choose_among_the_kinds() {
    let named = json!({ "properties": { "name": { "type": "string" } } });
    let mut pet = named.clone();
    pet["anyOf"] = json!([{ "$ref": "#/$defs/Cat" }]);
    check(
        &json!({ "$ref": "#/$defs/Pet", "$defs": { "Pet": pet, "Cat": { "allOf": [{ "$ref": "#/$defs/Pet" }] } } }),
        &json!({ "$ref": "#/$defs/Pet", "$defs": { "Pet": pet, "Cat": { "allOf": [named] } } }),
        &[],
    );
}

/// Schemas of 256 KiB at most whose parts multiply, each with the keyword that is left out.
#[test]
fn parts_that_multiply_are_left_out() {
    let many = 2_000;
    let part = || json!({ "anyOf": vec![json!({ "minLength": 1 }); many] });
    let names = || (0..many).map(|index| format!("n{index}"));
    // One part under names that differ in their escapes.
    let escaped = |index: usize| -> String {
        let letter = |bit: usize| if index >> bit & 1 == 1 { "%61" } else { "a" };
        format!("#/x/{}", (0..11).map(letter).collect::<String>())
    };
    let references = (0..many).map(|index| json!({ "$ref": escaped(index) }));
    let references: Vec<Value> = references.collect();
    let base = json!({ "description": part(), "anyOf": [{ "$ref": "#/$defs/Kind" }] });
    let bases = vec![json!({ "$ref": "#/$defs/Base" }); many];
    let cases = [
        ("$ref", json!({ "anyOf": references, "x": { "aaaaaaaaaaa": part() } })),
        ("$ref", json!({ "x": { "aaaaaaaaaaa": part() }, "anyOf": references })),
        ("", json!({ "$defs": { "Base": base, "Kind": { "allOf": bases } } })),
        (
            "propertyNames",
            json!({
                "propertyNames": { "enum": names().collect::<Vec<_>>() },
                "additionalProperties": part(),
            }),
        ),
        ("oneOf", json!({ "oneOf": names().map(|it| json!({ "const": it })).collect::<Vec<_>>() })),
        ("pattern", json!({ "pattern": r"\w".repeat(80_000) })),
    ];
    for (keyword, schema) in cases {
        let given = schema.to_string().len();
        assert!(given <= 256 << 10, "{given} bytes of {keyword}");
        let of = Enforceable::of(&schema);
        let count = super::values(&of.schema);
        assert!(count < 100_000, "{count} values without {keyword}");
        assert_eq!(of.left_out.first().copied().unwrap_or_default(), keyword);
    }
}

#[test]
fn parts_of_an_intersection_are_open() {
    let part = |name: &str| json!({ "properties": { name: {} }, "additionalProperties": false });
    check(
        &json!({ "allOf": [part("a"), part("b")] }),
        &json!({ "allOf": [{ "properties": { "a": {} } }, { "properties": { "b": {} } }] }),
        &["additionalProperties"],
    );
    let alone = json!({ "allOf": [part("a"), { "properties": { "a": {} } }] });
    check(&alone, &alone, &[]);
}

#[test]
fn types_and_limits_beyond_json_are_left_out() {
    check(&json!({ "type": "bigint" }), &json!({}), &["type"]);
    let float = json!({ "type": "number", "minimum": -3.5e38, "maximum": 3 });
    check(&float, &json!({ "type": "number", "maximum": 3 }), &["minimum"]);
}

#[test]
fn a_reference_without_its_first_character_is_one_within_the_schema() {
    let defs = json!({ "A": { "type": "integer" } });
    check(
        &json!({ "$ref": "/$defs/A", "$defs": defs }),
        &json!({ "$ref": "#/$defs/A", "$defs": defs }),
        &[],
    );
}
