//! References of a schema to its own parts.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::DEFINITIONS;
use super::copies::Copies;

/// Moves the targets of references that are no definitions of the root, or whose names have escapes, to
/// definitions of the root with plain names. Returns false if a target does not exist.
///
/// A target that would be copied beyond the bound counts as none.
pub(super) fn name_targets(root: &mut Value, copies: &mut Copies) -> bool {
    let document = root.clone();
    let mut names = Names::default();
    let mut targets = Map::new();
    let mut are_all_there = true;
    names.rename(root, &document);
    while let Some(target) = names.targets.get(targets.len()) {
        let found = document.pointer(&unescaped(target));
        let found = found.or_else(|| unescaped_name(&document, target));
        let copy = found.and_then(|schema| copies.copy(schema));
        are_all_there &= copy.is_some();
        let mut schema = copy.unwrap_or(Value::Bool(true));
        let name = Names::of(targets.len());
        names.rename(&mut schema, &document);
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

/// Returns the target of a schema that is a reference to a definition, or else the schema.
pub(super) fn target<'a>(schema: &'a Value, document: &'a Value) -> &'a Value {
    let pointer = schema["$ref"].as_str().and_then(|target| target.strip_prefix('#'));
    pointer.and_then(|pointer| document.pointer(pointer)).unwrap_or(schema)
}

/// Returns the definition of a reference whose author did not escape its slashes.
fn unescaped_name<'a>(document: &'a Value, target: &str) -> Option<&'a Value> {
    let (folder, name) = target.strip_prefix("#/")?.split_once('/')?;
    document.get(folder)?.get(name)
}

/// Targets that get plain names, in the order of their names.
#[derive(Default)]
struct Names {
    targets: Vec<String>,
    /// Places of the targets.
    known: HashMap<String, usize>,
}

impl Names {
    /// Returns the name of the target at `index`.
    fn of(index: usize) -> String {
        format!("nsbridge-{index}")
    }

    /// Replaces references that need a plain name by those to names.
    fn rename(&mut self, schema: &mut Value, document: &Value) {
        match schema {
            Value::Object(keywords) => {
                if let Some(Value::String(target)) = keywords.get_mut("$ref")
                    && target.starts_with("#/")
                    && !is_plain(target, document)
                {
                    let index = self.known.get(target).copied().unwrap_or_else(|| {
                        self.targets.push(target.clone());
                        self.known.insert(target.clone(), self.targets.len() - 1);
                        self.targets.len() - 1
                    });
                    *target = format!("#/$defs/{}", Self::of(index));
                }
                keywords.values_mut().for_each(|it| self.rename(it, document));
            }
            Value::Array(values) => values.iter_mut().for_each(|it| self.rename(it, document)),
            _ => {}
        }
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
pub(super) fn inline_bases(root: &mut Value, copies: &mut Copies) {
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
                    let Some(mut base) = copies.copy(base) else { continue };
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
