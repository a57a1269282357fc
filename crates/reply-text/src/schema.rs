//! JSON schema as a grammar can enforce it.
//!
//! Generators of schemas write annotations, keywords that restrict nothing, and keywords that no
//! grammar of the text enforces, such as `uniqueItems`. [`Enforceable`] is the schema without them. It
//! names those that would have restricted the value.

mod copies;
mod references;

use std::collections::{BTreeSet, HashSet};

use regex_syntax::hir::Look;
use serde_json::{Map, Value, json};

use copies::{Copies, values};

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

/// Longest expression that a grammar follows, in bytes. An expression takes thousands of times its size in
/// memory while it is read.
const MAX_PATTERN_BYTES: usize = 4 << 10;

/// Most comparisons that may show that the schemas of a `oneOf` exclude each other.
const MOST_COMPARISONS: usize = 1 << 20;

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
        let mut schema = schema.clone();
        let mut rewriter = Rewriter::default();
        if !references::name_targets(&mut schema, &mut rewriter.copies) {
            rewriter.left_out.insert("$ref");
        }
        references::inline_bases(&mut schema, &mut rewriter.copies);
        rewriter.document = schema.clone();
        rewriter.rewrite(&mut schema);
        Self { schema, left_out: rewriter.left_out }
    }
}

/// Rewrites a schema and its parts.
#[derive(Default)]
struct Rewriter {
    left_out: BTreeSet<&'static str>,
    copies: Copies,
    /// Schema in which references have their targets.
    document: Value,
}

impl Rewriter {
    fn rewrite(&mut self, schema: &mut Value) {
        let Some(keywords) = schema.as_object_mut() else { return };
        keywords.retain(|name, _| !ANNOTATIONS.contains(&&**name) && !name.starts_with("x-"));
        let known = |format: &Value| format.as_str().is_some_and(|it| FORMATS.contains(&it));
        if keywords.get("format").is_some_and(|format| !known(format)) {
            keywords.remove("format");
        }
        rewrite_openapi(keywords);
        rewrite_names(keywords, &mut self.copies);
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
        // A reference may have keywords beside it.
        let with_target = |schema| [schema, references::target(schema, &self.document)];
        let kinds: Vec<[&Value; 2]> = schemas.iter().map(with_target).collect();
        let targets = kinds.iter().map(|[_, target]| values(target)).sum();
        let exclude = |one: &[&Value; 2], other: &[&Value; 2]| {
            one.iter().any(|a| other.iter().any(|b| are_apart(a, b)))
        };
        let excludes = |(index, kind): (usize, &[&Value; 2])| {
            kinds[index + 1..].iter().all(|other| exclude(kind, other))
        };
        if kinds.len().saturating_mul(targets) > MOST_COMPARISONS
            || !kinds.iter().enumerate().all(excludes)
        {
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
    let pattern = pattern.as_str().filter(|it| it.len() <= MAX_PATTERN_BYTES);
    let Some(hir) = pattern.and_then(|it| regex_syntax::parse(it).ok()) else { return false };
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
fn rewrite_names(keywords: &mut Map<String, Value>, copies: &mut Copies) {
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
            let listed = names["enum"].as_array().map_or(&[][..], |names| names);
            if !copies.copies(&value, listed.len()) {
                return;
            }
            let listed = listed.iter().filter_map(Value::as_str);
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

/// Returns the values of a schema that lists them.
fn constants(schema: &Value) -> Option<&[Value]> {
    let one = schema.get("const").map(std::slice::from_ref);
    one.or_else(|| schema.get("enum")?.as_array().map(Vec::as_slice))
}

/// Returns true if no value conforms to both schemas, as far as that can be seen.
fn are_apart(one: &Value, other: &Value) -> bool {
    if let (Some(one), Some(other)) = (constants(one), constants(other)) {
        let other: HashSet<&Value> = other.iter().collect();
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

#[cfg(test)]
mod tests;
