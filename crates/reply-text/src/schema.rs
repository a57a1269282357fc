//! JSON schema as a grammar can enforce it.
//!
//! Generators of schemas write annotations, keywords that restrict nothing, and keywords that no
//! grammar of the text enforces, such as `uniqueItems`. [`Enforceable`] is the schema without them. It
//! names those that would have restricted the value.

use std::collections::BTreeSet;

use regex_syntax::hir::Look;
use serde_json::{Map, Value, json};

/// Keywords that describe a value and restrict none. They play no part in a grammar.
const ANNOTATIONS: [&str; 21] = [
    "$anchor",
    "$comment",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$vocabulary",
    "components",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "deprecated",
    "description",
    "discriminator",
    "enumNames",
    "example",
    "examples",
    "externalDocs",
    "readOnly",
    "title",
    "writeOnly",
    "xml",
];

/// Formats that a grammar enforces. Any other is an annotation (JSON Schema 2020-12, 7.2).
const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

/// Types of JSON values. Generators of TypeScript's types write others, such as `bigint`.
const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// Magnitude up to which a grammar enforces the limits of a number, below that of 64-bit integers.
const MAX_LIMIT: f64 = 9e18;

/// Keywords that restrict a value in ways that no grammar of its text enforces.
const UNENFORCEABLE: [&str; 9] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "not",
    "propertyNames",
];

/// Keywords that have a meaning only beside one of the unenforceable ones.
const DEPENDENT: [&str; 4] = ["else", "maxContains", "minContains", "then"];

/// Keywords whose value is an object of definitions.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Keywords whose value is an object of schemas by name.
const BY_NAME: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];

/// Keywords whose value is a schema or a list of schemas.
const NESTED: [&str; 7] =
    ["additionalItems", "additionalProperties", "allOf", "anyOf", "items", "oneOf", "prefixItems"];

/// Schema as a grammar can enforce it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Enforceable {
    /// Schema without what is left out.
    pub schema: Value,
    /// Keywords that are left out and would have restricted the value.
    pub left_out: BTreeSet<&'static str>,
}

impl Enforceable {
    /// Rewrites a schema so that a grammar can enforce it.
    ///
    /// ```
    /// use nsbridge_reply_text::schema::Enforceable;
    /// use serde_json::json;
    ///
    /// let set = json!({ "type": "array", "uniqueItems": true, "title": "Set" });
    /// let enforceable = Enforceable::of(&set);
    /// assert_eq!(enforceable.schema, json!({ "type": "array" }));
    /// assert!(enforceable.left_out.contains("uniqueItems"));
    /// ```
    pub fn of(schema: &Value) -> Self {
        let mut of = Self { schema: schema.clone(), left_out: BTreeSet::new() };
        let mut schema = std::mem::take(&mut of.schema);
        if !name_targets(&mut schema) {
            of.left_out.insert("$ref");
        }
        inline_bases(&mut schema);
        of.rewrite(&mut schema);
        of.schema = schema;
        of
    }

    fn rewrite(&mut self, schema: &mut Value) {
        let Some(keywords) = schema.as_object_mut() else { return };
        keywords.retain(|name, _| !ANNOTATIONS.contains(&&**name) && !name.starts_with("x-"));
        let known = |format: &Value| format.as_str().is_some_and(|it| FORMATS.contains(&it));
        if keywords.get("format").is_some_and(|format| !known(format)) {
            keywords.remove("format");
        }
        rewrite_openapi(keywords);
        rewrite_names(keywords);
        self.rewrite_unevaluated(keywords);
        self.rewrite_one_of(keywords);
        self.open_parts(keywords);
        self.leave_out(keywords);
        for name in BY_NAME {
            let by_name = keywords.get_mut(name).and_then(Value::as_object_mut);
            by_name.into_iter().flat_map(Map::values_mut).for_each(|it| self.rewrite(it));
        }
        for name in NESTED {
            match keywords.get_mut(name) {
                Some(Value::Array(schemas)) => schemas.iter_mut().for_each(|it| self.rewrite(it)),
                Some(schema) => self.rewrite(schema),
                None => {}
            }
        }
    }

    /// Drops the keywords that no grammar enforces.
    fn leave_out(&mut self, keywords: &mut Map<String, Value>) {
        for name in UNENFORCEABLE {
            let Some(value) = keywords.remove(name) else { continue };
            let by_name = name.starts_with("depend") || name == "propertyNames";
            if !by_name || restricts(&value) {
                self.left_out.insert(name);
            }
        }
        keywords.retain(|name, _| !DEPENDENT.contains(&&**name));
        if keywords.remove("uniqueItems").is_some_and(|unique| unique == true) {
            self.left_out.insert("uniqueItems");
        }
        if keywords.get("pattern").is_some_and(|pattern| !is_regular(pattern)) {
            keywords.remove("pattern");
            self.left_out.insert("pattern");
        }
        if let Some(patterns) = keywords.get_mut("patternProperties").and_then(Value::as_object_mut)
        {
            let before = patterns.len();
            patterns.retain(|pattern, _| is_regular(&pattern.as_str().into()));
            if patterns.len() < before {
                self.left_out.insert("patternProperties");
                // The properties that it describes would be forbidden.
                keywords.remove("additionalProperties");
            }
        }
        let is_type = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
        let are_types = match keywords.get("type") {
            Some(Value::Array(kinds)) => kinds.iter().all(is_type),
            kind => kind.is_none_or(is_type),
        };
        if !are_types {
            keywords.remove("type");
            self.left_out.insert("type");
        }
        for name in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
            let limit = keywords.get(name).and_then(Value::as_f64);
            if limit.is_some_and(|limit| limit.abs() > MAX_LIMIT) {
                keywords.remove(name);
                self.left_out.insert(name);
            }
        }
        // A client that converts references loses their first character.
        if let Some(Value::String(target)) = keywords.get_mut("$ref")
            && ["/$defs/", "/definitions/"].iter().any(|it| target.starts_with(it))
        {
            target.insert(0, '#');
        }
        let local =
            |target: &Value| target.as_str().is_some_and(|it| it == "#" || it.starts_with("#/"));
        if keywords.get("$ref").is_some_and(|target| !local(target)) {
            keywords.remove("$ref");
            self.left_out.insert("$ref");
        }
        if keywords.get("minProperties").is_some_and(|count| *count == 0) {
            keywords.remove("minProperties");
        }
        // A grammar counts the properties only if it is known which ones there are.
        if !all_are_required(keywords) {
            for name in ["minProperties", "maxProperties"] {
                if keywords.remove(name).is_some() {
                    self.left_out.insert(name);
                }
            }
        }
    }

    /// Turns `unevaluated...` into `additional...` where both mean the same.
    fn rewrite_unevaluated(&mut self, keywords: &mut Map<String, Value>) {
        /// Keywords by which schemas beside this one evaluate properties or items.
        const EVALUATING: [&str; 7] =
            ["$dynamicRef", "$ref", "allOf", "anyOf", "dependentSchemas", "if", "oneOf"];
        let is_alone = !EVALUATING.iter().any(|name| keywords.contains_key(*name));
        for (name, additional) in
            [("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")]
        {
            let Some(schema) = keywords.remove(name).filter(restricts) else { continue };
            if is_alone && !keywords.contains_key(additional) {
                keywords.insert(additional.to_owned(), schema);
            } else {
                self.left_out.insert(name);
            }
        }
    }

    /// Lets the parts of `allOf` have the properties of one another. If two forbid all but their own, no
    /// object conforms to both, which the author of an intersection does not mean.
    fn open_parts(&mut self, keywords: &mut Map<String, Value>) {
        let Some(Value::Array(parts)) = keywords.get_mut("allOf") else { return };
        let closed = parts.iter_mut().filter(|part| part["additionalProperties"] == false);
        let closed: Vec<&mut Value> = closed.collect();
        let [first, rest @ ..] = closed.as_slice() else { return };
        let names = |part: &Value| -> BTreeSet<String> {
            let properties = part["properties"].as_object();
            properties.into_iter().flat_map(Map::keys).cloned().collect()
        };
        if rest.iter().any(|part| names(part) != names(first)) {
            let parts = closed.into_iter().filter_map(Value::as_object_mut);
            parts.for_each(|part| drop(part.remove("additionalProperties")));
            self.left_out.insert("additionalProperties");
        }
    }

    /// Turns `oneOf` into `anyOf`, which means the same if its schemas exclude each other.
    fn rewrite_one_of(&mut self, keywords: &mut Map<String, Value>) {
        let Some(Value::Array(schemas)) = keywords.remove("oneOf") else { return };
        let pairs = schemas.iter().enumerate();
        let excludes = |(index, schema): (usize, &Value)| {
            schemas[index + 1..].iter().all(|it| are_apart(schema, it))
        };
        if !pairs.into_iter().all(excludes) {
            self.left_out.insert("oneOf");
        }
        if keywords.contains_key("anyOf") {
            let all = keywords.entry("allOf").or_insert(json!([]));
            if let Some(all) = all.as_array_mut() {
                all.push(json!({ "anyOf": schemas }));
            }
        } else {
            keywords.insert("anyOf".to_owned(), schemas.into());
        }
    }
}

/// Returns true if a schema, or the value of a keyword, restricts a value.
fn restricts(schema: &Value) -> bool {
    match schema {
        Value::Null | Value::Bool(true) => false,
        Value::Object(keywords) => !keywords.is_empty(),
        _ => true,
    }
}

/// Returns true if a grammar can follow an expression.
fn is_regular(pattern: &Value) -> bool {
    let Some(hir) = pattern.as_str().and_then(|it| regex_syntax::parse(it).ok()) else {
        return false;
    };
    hir.properties().look_set().iter().all(|look| matches!(look, Look::Start | Look::End))
}

fn all_are_required(keywords: &Map<String, Value>) -> bool {
    let Some(Value::Object(properties)) = keywords.get("properties") else { return true };
    let required = keywords.get("required").and_then(Value::as_array);
    properties.keys().all(|name| required.is_some_and(|it| it.iter().any(|it| it == name)))
}

/// Rewrites what OpenAPI 3.0 and draft 4 say in their own way.
fn rewrite_openapi(keywords: &mut Map<String, Value>) {
    if keywords.remove("nullable").is_some_and(|nullable| nullable == true) {
        if let Some(Value::String(kind)) = keywords.get("type") {
            let kinds = json!([kind, "null"]);
            keywords.insert("type".to_owned(), kinds);
        }
        if let Some(Value::Array(values)) = keywords.get_mut("enum")
            && !values.contains(&Value::Null)
        {
            values.push(Value::Null);
        }
    }
    for (exclusive, limit) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        match keywords.get(exclusive) {
            Some(Value::Bool(true)) => match keywords.remove(limit) {
                Some(number) => drop(keywords.insert(exclusive.to_owned(), number)),
                None => drop(keywords.remove(exclusive)),
            },
            Some(Value::Bool(false)) => drop(keywords.remove(exclusive)),
            _ => {}
        }
    }
}

/// Rewrites names of properties that are listed, or match an expression, as those properties.
fn rewrite_names(keywords: &mut Map<String, Value>) {
    let Some(names) = keywords.get("propertyNames").and_then(Value::as_object) else { return };
    let has = |name: &str| keywords.contains_key(name);
    if has("properties") || has("patternProperties") {
        return;
    }
    let texts = names.get("type").is_none_or(|kind| kind == "string");
    let rest: Vec<&String> =
        names.keys().filter(|name| *name != "type" && !ANNOTATIONS.contains(&&***name)).collect();
    let value = keywords.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let rewritten = match rest.as_slice() {
        [] if texts => None,
        [only] if texts && *only == "enum" => {
            let listed = names["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let listed = listed.map(|name| (name.to_owned(), value.clone()));
            Some(("properties", Value::Object(listed.collect())))
        }
        [only] if texts && *only == "pattern" => names["pattern"]
            .as_str()
            .map(|pattern| ("patternProperties", json!({ pattern: value }))),
        _ => return,
    };
    keywords.remove("propertyNames");
    if let Some((name, properties)) = rewritten {
        keywords.insert(name.to_owned(), properties);
        keywords.insert("additionalProperties".to_owned(), false.into());
    }
}

/// Returns true if no value conforms to both schemas, as far as that can be seen.
fn are_apart(one: &Value, other: &Value) -> bool {
    let constants = |schema: &Value| {
        schema
            .get("const")
            .map(|it| vec![it.clone()])
            .or_else(|| schema.get("enum")?.as_array().cloned())
    };
    if let (Some(one), Some(other)) = (constants(one), constants(other)) {
        return one.iter().all(|value| !other.contains(value));
    }
    let kinds = |schema: &Value| match schema.get("type") {
        Some(Value::String(kind)) => Some(vec![kind.clone()]),
        Some(Value::Array(kinds)) => {
            Some(kinds.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        }
        _ => None,
    };
    if let (Some(one), Some(other)) = (kinds(one), kinds(other)) {
        let is_integer = |kind: &str| matches!(kind, "integer" | "number");
        let meets = |a: &String, b: &String| a == b || (is_integer(a) && is_integer(b));
        if !one.iter().any(|a| other.iter().any(|b| meets(a, b))) {
            return true;
        }
    }
    // A property that both require tells them apart.
    let required = |schema: &Value, name: &str| {
        schema["required"].as_array().is_some_and(|it| it.iter().any(|it| it == name))
    };
    let properties = one.get("properties").and_then(Value::as_object);
    properties.into_iter().flatten().any(|(name, schema)| {
        let theirs = &other["properties"][name];
        required(one, name)
            && required(other, name)
            && theirs.is_object()
            && constants(schema).is_some()
            && are_apart(schema, theirs)
    })
}

/// Moves the targets of references that are no definitions of the root, or whose names have escapes, to
/// definitions of the root with plain names. Returns false if a target does not exist.
fn name_targets(root: &mut Value) -> bool {
    let document = root.clone();
    let mut named: Vec<(String, String)> = Vec::new();
    let mut targets = Map::new();
    let mut are_all_there = true;
    rename(root, &document, &mut named);
    let mut at = 0;
    while at < named.len() {
        let (target, name) = named[at].clone();
        at += 1;
        let found =
            document.pointer(&unescaped(&target)).or_else(|| unescaped_name(&document, &target));
        are_all_there &= found.is_some();
        let mut schema = found.cloned().unwrap_or(Value::Bool(true));
        rename(&mut schema, &document, &mut named);
        targets.insert(name, schema);
    }
    if let Some(keywords) = root.as_object_mut().filter(|_| !targets.is_empty()) {
        let definitions = keywords.entry("$defs").or_insert(json!({}));
        if let Some(definitions) = definitions.as_object_mut() {
            definitions.extend(targets);
        }
    }
    are_all_there
}

/// Returns the definition of a reference whose author did not escape its slashes.
fn unescaped_name<'a>(document: &'a Value, target: &str) -> Option<&'a Value> {
    let (folder, name) = target.strip_prefix("#/")?.split_once('/')?;
    document.get(folder)?.get(name)
}

/// Replaces references that need a plain name by those to names, which it adds to `named`.
fn rename(schema: &mut Value, document: &Value, named: &mut Vec<(String, String)>) {
    match schema {
        Value::Object(keywords) => {
            if let Some(Value::String(target)) = keywords.get_mut("$ref")
                && target.starts_with("#/")
                && !is_plain(target, document)
            {
                let known = named.iter().find(|(known, _)| known == target);
                let name = known.map(|(_, name)| name.clone()).unwrap_or_else(|| {
                    let name = format!("nsbridge-{}", named.len());
                    named.push((target.clone(), name.clone()));
                    name
                });
                *target = format!("#/$defs/{name}");
            }
            keywords.values_mut().for_each(|it| rename(it, document, named));
        }
        Value::Array(values) => values.iter_mut().for_each(|it| rename(it, document, named)),
        _ => {}
    }
}

/// Returns true if a reference leads to a definition of the root, without escapes.
fn is_plain(target: &str, document: &Value) -> bool {
    let name = DEFINITIONS
        .iter()
        .find_map(|it| target.strip_prefix("#/")?.strip_prefix(it)?.strip_prefix('/'));
    name.is_some_and(|name| !name.contains(['/', '~', '%']))
        && document.pointer(&target[1..]).is_some()
}

/// Replaces references to a base whose choice names the schema that refers to it by the base without the
/// choice. OpenAPI's discriminators are so: each kind of a base is the base and more, and the base is one
/// of its kinds.
fn inline_bases(root: &mut Value) {
    let document = root.clone();
    for folder in DEFINITIONS {
        let Some(definitions) = root.get_mut(folder).and_then(Value::as_object_mut) else {
            continue;
        };
        for (name, schema) in definitions {
            let own = json!(format!("#/{folder}/{name}"));
            let parts = schema.get_mut("allOf").and_then(Value::as_array_mut);
            for part in parts.into_iter().flatten() {
                let target = part["$ref"].as_str().and_then(|target| target.strip_prefix('#'));
                let Some(base) = target.and_then(|target| document.pointer(target)) else {
                    continue;
                };
                let choices = ["oneOf", "anyOf"].map(|choice| base[choice].as_array());
                if choices.into_iter().flatten().flatten().any(|kind| kind["$ref"] == own) {
                    let mut base = base.clone();
                    if let Some(keywords) = base.as_object_mut() {
                        keywords.retain(|name, _| name != "oneOf" && name != "anyOf");
                    }
                    *part = base;
                }
            }
        }
    }
}

/// Returns the JSON pointer of a reference within the document, whose percent signs are decoded.
fn unescaped(target: &str) -> String {
    let mut bytes = Vec::with_capacity(target.len());
    let mut rest = target.trim_start_matches('#').bytes();
    while let Some(byte) = rest.next() {
        let ahead: Vec<u8> = rest.clone().take(2).collect();
        let decoded = std::str::from_utf8(&ahead).ok().filter(|it| it.len() == 2);
        let decoded = decoded.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match decoded.filter(|_| byte == b'%') {
            Some(decoded) => {
                bytes.push(decoded);
                rest.nth(1);
            }
            None => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
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
            &[
                "$ref",
                "contains",
                "dependentRequired",
                "if",
                "minProperties",
                "pattern",
                "uniqueItems",
            ],
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

    #[test]
    fn parts_of_an_intersection_are_open() {
        let part =
            |name: &str| json!({ "properties": { name: {} }, "additionalProperties": false });
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
}
