//! The document against the routes, and its references against its schemas.

use std::collections::BTreeSet;

use serde_json::Value;

use super::document;

const ROUTES: &str = include_str!("../routes.rs");

/// Returns paths and methods of the calls of `route` in the source of the routes.
fn routed() -> BTreeSet<(String, String)> {
    let mut routed = BTreeSet::new();
    for call in ROUTES.split(".route(").skip(1) {
        let mut quoted = call.split('"');
        let path = quoted.nth(1).unwrap_or_default().replace("{*", "{");
        let handlers = call.split("\n        .").next().unwrap_or_default();
        for method in ["get", "post", "put", "delete", "patch"] {
            if handlers.contains(&format!(" {method}("))
                || handlers.contains(&format!(".{method}("))
            {
                // A name may have slashes, so the route ends with it.
                let is_run = (&*path, method) == ("/v1/models/{name}", "post");
                let path = if is_run { format!("{path}/run") } else { path.clone() };
                routed.insert((path, method.to_owned()));
            }
        }
    }
    routed
}

#[test]
fn every_route_is_in_the_document_and_nothing_else() {
    let document = document();
    let paths = document["paths"].as_object().unwrap().iter();
    let documented: BTreeSet<(String, String)> = paths
        .flat_map(|(path, of)| of.as_object().unwrap().keys().map(|m| (path.clone(), m.clone())))
        .collect();
    let routed = routed();
    assert!(routed.len() > 25, "{routed:?}");
    assert_eq!(documented, routed);
}

#[test]
fn every_reference_leads_to_a_schema_that_is_one() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    let known: BTreeSet<String> =
        schemas.keys().map(|name| format!("#/components/schemas/{name}")).collect();
    assert_eq!(found, known);
    for (name, schema) in schemas {
        if !schema.to_string().contains("$ref") {
            assert!(jsonschema::validator_for(schema).is_ok(), "{name}");
        }
    }
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(to)) = fields.get("$ref") {
                found.insert(to.clone());
            }
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}
