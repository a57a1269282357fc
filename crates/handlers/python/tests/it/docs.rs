//! Examples of `docs/python.md`.

use nsbridge_handler::Error;
use nsbridge_handler::testing::check;
use serde_json::json;

use crate::folder::{Folder, answer};

/// Returns a folder with the example that has this line.
#[track_caller]
fn example(line: &str) -> Folder {
    let docs = include_str!("../../../../../docs/python.md");
    let examples = docs.split("```python\n").skip(1).filter_map(|rest| rest.split("```").next());
    let found: Vec<_> = examples.filter(|example| example.contains(line)).collect();
    assert_eq!(found.len(), 1, "examples with {line}");
    Folder::with(found[0])
}

#[test]
fn the_example_of_type_hints_works() {
    let python = example("class Story:").load();
    let input = json!({ "prompt": "bear", "words": 2, "ages": { "Ann": 3 } });
    assert_eq!(answer(&python, &input).unwrap(), [json!("calm bear 0"), json!("calm bear 1")]);
    assert_eq!(check(&python, &input), Ok(()));
    let error = answer(&python, &json!({ "prompt": "bear", "ages": { "Ann": "3" } })).unwrap_err();
    assert_eq!(error.to_string(), "`input.ages.Ann` must be an integer");
}

#[test]
fn the_example_of_a_model_for_djlserving_works() {
    let python = example("from djl_python").load();
    let input = json!({ "inputs": "a bear" });
    assert_eq!(answer(&python, &input).unwrap(), [json!("A"), json!("BEAR")]);
    assert_eq!(check(&python, &input), Ok(()));
    let error = answer(&python, &json!({ "inputs": "" })).unwrap_err();
    assert!(matches!(error, Error::BadInput(why) if why == "the input has no words"));
}
