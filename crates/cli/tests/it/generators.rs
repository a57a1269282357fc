//! Schemas as generators write them (`tests/generators`), as a gateway makes them enforceable.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use nsbridge_handler::ResponseFormat;
use nsbridge_llama::{Grammars, Rule};
use nsbridge_reply_text::schema::Enforceable;
use serde_json::{Value, json};

/// Folder of the schemas.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/generators");

/// Keywords that are left out of each schema that has some. If the file is missing, the test writes it.
const LEFT_OUT: &str = "left-out.json";

/// Returns the schemas by their paths in the folder.
fn schemas() -> BTreeMap<String, Value> {
    let folders = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path());
    let folders = folders.filter(|path| path.is_dir() && !path.ends_with("make"));
    let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
    let files = files.map(|entry| entry.unwrap().path());
    files
        .map(|path: PathBuf| {
            let name = path.strip_prefix(FOLDER).unwrap().display().to_string();
            (name, serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
        })
        .collect()
}

/// Compiles a schema as the format of a reply.
fn compile(grammars: &Grammars, schema: &Value) -> Result<(), String> {
    let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
    let format: ResponseFormat = serde_json::from_value(format).unwrap();
    let rule = Rule::of(&format).map_err(|error| error.to_string())?.unwrap();
    grammars.compile(&rule).map(drop).map_err(|error| error.to_string())
}

#[test]
fn schemas_of_generators_are_enforced_but_for_the_keywords_that_are_told() {
    let bytes =
        || std::iter::once(Vec::new()).chain((0..=u8::MAX).map(|byte| vec![byte])).collect();
    let grammars = Grammars::new(bytes);
    let schemas = schemas();
    assert!(schemas.len() > 200, "there are only {} schemas", schemas.len());
    let mut left_out = BTreeMap::<String, BTreeSet<&str>>::new();
    let (mut refused, mut as_written) = (Vec::new(), 0);
    for (name, schema) in &schemas {
        as_written += usize::from(compile(&grammars, schema).is_ok());
        let enforceable = Enforceable::of(schema);
        if let Err(why) = compile(&grammars, &enforceable.schema) {
            refused.push(format!("{name}: {why}"));
        }
        if !enforceable.left_out.is_empty() {
            left_out.insert(name.clone(), enforceable.left_out.iter().copied().collect());
        }
    }
    println!(
        "{} schemas: {as_written} compile as they are written, {} as they are enforced; {} leave keywords out",
        schemas.len(),
        schemas.len() - refused.len(),
        left_out.len()
    );
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    let file = Path::new(FOLDER).join(LEFT_OUT);
    if !file.exists() {
        fs::write(&file, format!("{:#}\n", json!(left_out))).unwrap();
    }
    let known: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(json!(left_out), known);
}
